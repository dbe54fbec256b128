"""Queries in Prometheus's language, read as far as tests need: what they name, and whether they fit together.

Not the whole grammar: what is not known is an error, never passed over.
"""

import re
from typing import NamedTuple

RANGED = {"rate", "increase", "delta", "deriv", "changes", "predict_linear"}
FUNCTIONS = RANGED | {"histogram_quantile", "label_replace", "time"}
AGGREGATIONS = {"sum", "max", "min", "topk"}
OPERATORS = {"and", "or", "unless"}
GROUPING = {"by", "on", "group_left"}

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
    | (?P<duration>\d+[smhd]\b)
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/<>=(){},])""",
    re.VERBOSE,
)
_CLOSING = {"(": ")", "{": "}"}


class Token(NamedTuple):
    kind: str
    text: str


class Selector(NamedTuple):
    """A metric, its matchers as (label, operator, value), and whether it has a range."""

    metric: str
    matchers: list[tuple[str, str, str]]
    ranged: bool


class Query:
    """One query; ValueError if it is not understood."""

    def __init__(self, text: str) -> None:
        self.selectors: list[Selector] = []
        self.grouped: list[str] = []  # labels after by, on, group_left
        self.made: list[str] = []  # texts in label_replace, the label that it makes among them
        self.aggregates = False
        self._tokens = _tokens(text)
        self._open: list[tuple[str, str]] = []  # brackets, with the function before each
        while self._tokens:
            self._read(self._tokens.pop(0))
        if self._open or not self.selectors:
            raise ValueError(f"a bracket is open, or no metric is named: {text}")

    @property
    def labels(self) -> set[str] | None:
        """The labels of the result if they are made by grouping, else None: those of the metrics."""
        return {*self.grouped, *self.made} if self.aggregates else None

    def _read(self, token: Token) -> None:
        if token.kind == "name":
            self._read_name(token.text)
        elif token.text == "(":
            self._open.append(("(", ""))
        elif token.text == ")":
            self._close()
        elif token.kind == "text" and self._open and self._open[-1][1] == "label_replace":
            self.made.append(token.text.strip('"'))
        elif token.kind in ("range", "duration") or token.text in "{}":
            raise ValueError(f"{token.text} stands alone")

    def _read_name(self, name: str) -> None:
        if name in GROUPING:
            self.grouped += [label.text for label in self._between("(") if label.kind == "name"]
            self.aggregates |= name == "by"
        elif name == "offset":
            if not self._tokens or self._tokens.pop(0).kind != "duration":
                raise ValueError("offset by what?")
        elif name in FUNCTIONS | AGGREGATIONS:
            if self._next() == "(":
                self._tokens.pop(0)
                self._open.append(("(", name))
            elif self._next() != "by":
                raise ValueError(f"{name} without arguments")
        elif self._next() == "(":
            raise ValueError(f"no known function: {name}")
        elif name not in OPERATORS:
            self._select(name)

    def _select(self, metric: str) -> None:
        parts = self._between("{") if self._next() == "{" else []
        texts = [part.text for part in parts if part.text != ","]
        if len(texts) % 3:
            raise ValueError(f"{metric}: matchers are not understood: {texts}")
        triples = zip(texts[::3], texts[1::3], texts[2::3], strict=True)
        matchers = [(label, operator, value.strip('"')) for label, operator, value in triples]
        ranged = bool(self._tokens) and self._tokens[0].kind == "range"
        if ranged:
            self._tokens.pop(0)
        function = self._open[-1][1] if self._open else ""
        if ranged != (function in RANGED):
            raise ValueError(f"{function}({metric}): a range is missing, or one too many")
        self.selectors.append(Selector(metric, matchers, ranged))

    def _between(self, opening: str) -> list[Token]:
        """The tokens from this bracket to the one that closes it."""
        if self._next() != opening:
            raise ValueError(f"{opening} is missing before {self._next()!r}")
        texts = [token.text for token in self._tokens]
        end = texts.index(_CLOSING[opening])
        found, self._tokens = self._tokens[1:end], self._tokens[end + 1 :]
        return found

    def _close(self) -> None:
        if not self._open:
            raise ValueError("a bracket is closed that was not opened")
        self._open.pop()

    def _next(self) -> str:
        return self._tokens[0].text if self._tokens else ""


def _tokens(text: str) -> list[Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"not understood: {text[at:]}")
        at = match.end()
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match[0]))
    return found
