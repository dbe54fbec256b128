"""The documents say what the code does: links, names of tests, formats, settings, and the wheel's example."""

import ast
import datetime as dt
import io
import re
import tokenize
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import msgspec
import numpy as np
import pytest

from tests.harness import settings_table
from timerwheel.api.http.problems import PROBLEMS
from timerwheel.index import dedup, key_runs
from timerwheel.index.forwarding import MARK_DTYPE
from timerwheel.index.writer import ITEM_KEY
from timerwheel.model.ids import Ids
from timerwheel.offline import fsck
from timerwheel.settings import Settings
from timerwheel.state import dedup_key
from timerwheel.state.log_manifest import LogStart
from timerwheel.state.memtable import IndexState
from timerwheel.state.positions import POSITION_DTYPE
from timerwheel.store import keys, pages, record, segment, sidecar
from timerwheel.store.index import INDEX_FORMAT, TABLES
from timerwheel.store.record import HEADER_DTYPE, HEADER_SIZE, NO_OFFSET, Kind, decode, encode, fault, replace
from timerwheel.store.table import ROW_DTYPE, Table
from timerwheel.wheel.geometry import (
    LEVEL_NAMES,
    SLOT_MS,
    Cascade,
    Horizons,
    Level,
    first_horizons,
    next_cascade,
    round_up,
)
from timerwheel.wheel.slot_table import ADD, ENTRY_DTYPE, REMOVE

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "doc").glob("*.md")])
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    *(f"doc/{name}.md" for name in ("log-format", "index-format", "wheel", "crash-matrix", "http-api")),
    *(
        f"doc/{name}.md"
        for name in ("cli", "operations", "decisions", "index", "guarantees", "concepts", "faq", "shards")
    ),
]

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_DEFINED = re.compile(r"^\s*(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_PATH = re.compile(r"(?:tests|store|timerwheel|api|rocketmq|doc|examples|bench)/[\w./-]*\w")
_MODULE = re.compile(r"timerwheel(?:\.[a-z_]+)+")
# Names in the documents of Hypothesis rules and invariants, which are tests without `test_`.
MODEL = ROOT / "tests/property/test_engine_model.py"


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading!r}"
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text: rows of cells, without the header and the line below it."""
    found: list[list[list[str]]] = []
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip() for cell in cells])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    found = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(kept.replace(" ", "-"))
    return found


@cache
def defined_in_tests() -> dict[str, set[str]]:
    return {
        name_of(path): set(_DEFINED.findall(path.read_text()))
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__)
    }


# ---------------------------------------------------------------------- links and names


@pytest.mark.parametrize("name", PAGES)
def test_every_document_is_there(name):
    assert text_of(name).startswith("# ")


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(path):
    text = _FENCED.sub("", path.read_text())
    for link in _LINK.findall(text):
        if re.match(r"https?:|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / unquote(target)).resolve() if target else path
        assert file.exists(), f"{link}: no such file"
        assert ROOT in file.parents, f"{link} leaves the project"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{link}: no such heading"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_named_test_exists(path):
    everywhere = set().union(*defined_in_tests().values())
    for code in _CODE.findall(path.read_text()):
        file, colons, name = code.partition("::")
        if colons and file.startswith("tests/"):
            assert name in defined_in_tests().get(file, set()), f"{code} does not exist"
        elif re.fullmatch(r"test_\w+", code):
            assert code in everywhere, f"{code} does not exist"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_named_file_exists(path):
    for code in _CODE.findall(path.read_text()):
        file = code.partition("::")[0]
        if _PATH.fullmatch(file):
            assert (ROOT / file).exists(), f"{file} does not exist"


def test_every_module_that_the_architecture_names_exists():
    for code in _CODE.findall(text_of("ARCHITECTURE.md")):
        if _MODULE.fullmatch(code):
            place = ROOT / code.replace(".", "/")
            assert place.is_dir() or place.with_suffix(".py").exists(), f"{code} does not exist"


def test_every_module_to_begin_with_exists():
    (table, *_) = tables(section(text_of("ARCHITECTURE.md"), "Rooms and layers"))
    packages = [row[0].strip("`") for row in table]
    assert packages
    for package, (_, _, first) in zip(packages, table, strict=True):
        for name in _CODE.findall(first):
            base = ROOT if "." in name.removesuffix(".js") else ROOT / package.replace(".", "/")
            place = base / name if "/" in name else base / name.replace(".", "/")
            assert place.is_dir() or place.exists() or place.with_suffix(".py").exists(), f"{package} {name}"


def test_each_row_of_the_crash_matrix_names_a_test():
    known = set().union(*defined_in_tests().values())
    count = 0
    for table in tables(text_of("doc/crash-matrix.md")):
        for what, then, proof in table:
            assert what
            assert then
            assert "matrix" in proof or any(name in known for name in _CODE.findall(proof)), what
            count += 1
    assert count > 30


def test_rules_named_as_proof_are_rules_of_the_model():
    decorated = re.findall(r"@(?:rule|invariant)\(.*\)\n    def (\w+)", MODEL.read_text())
    for name in ("doc/guarantees.md", "doc/crash-matrix.md"):
        named = {c for table in tables(text_of(name)) for row in table for c in _CODE.findall(row[-1])}
        for code in named:
            if re.fullmatch(r"[a-z]+(_[a-z]+)+", code) and not code.startswith("test_"):
                assert code in decorated, f"{name} names {code}"


# ---------------------------------------------------------------------- pictures

_PICTURE = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_WORDS_FROM = 40
"""A line of a picture that begins behind this column continues the words beside a level."""


def pictures() -> list[list[set[str]]]:
    """The levels of each picture of rooms and layers, top to bottom: the names on one line."""
    return [
        [
            set(re.split(" {2,}", line.strip())[0].split(" | "))
            for line in picture.splitlines()
            if len(line) - len(line.lstrip()) < _WORDS_FROM
        ]
        for picture in _PICTURE.findall(section(text_of("ARCHITECTURE.md"), "Rooms and layers"))
    ]


def contracts() -> dict[str, list[set[str]]]:
    """The layers of each contract of import-linter, by the package whose modules they order."""
    declared = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    return {
        one.get("containers", [""])[0]: [set(level.split(" | ")) for level in one["layers"]]
        for one in declared
        if one["type"] == "layers"
    }


def test_pictures_of_the_architecture_are_the_contracts():
    house, api, store = pictures()
    declared = contracts()
    bench, _ = declared[""]
    assert house == [bench, *declared["timerwheel"]]
    assert api == declared["timerwheel.api"]
    assert store == declared["timerwheel.store"]


# ---------------------------------------------------------------------- words

# What a reader stumbles over, and the better word. Keys are regular expressions for whole words.
WORDS = {
    "told": "reported, shown, named, says",
    "whoever": "the caller, the client, anyone who",
    "anew": "again, rebuilt",
    "apart": "separated; except for",
    "meanwhile": "in the meantime, during the call",
    "as it stands": "now, unchanged",
    "what waits": "scheduled messages, pending timers",
    "comes? again": "is delivered again, is retried",
    "(?<!there )(?:is|are) no (?!longer|more)": "is not a, are not",
    "what is said": "the reference, the statement",
    "for ever": "forever, permanently, without a limit",
    "hand(?:s|ed|ing)? out|handout": "lease, assign, deliver",
    "came back": "is ready again, was retried",
}
# Names of an interface, and the few places where a word has its ordinary sense.
ORDINARY = re.compile(r"`[^`\n]+`|taken apart|far apart|a second apart|seconds apart")
# A docstring states what the thing is or does.
_OPENING = re.compile(r"(?:As|Of|By|The same|So)\b")
INTERFACE_NAMES = frozenset({"handed out"})  # an old name of a JSON field, kept
# Words of this house in the names of the code, where the field has others; a name in camel case counts too.
HOUSE_WORDS = re.compile(
    r"(?:^|_)(?:anew|books|bur(?:y|ied|ial)|came_back|cramped|desk|hand(?:s|ed)?_out|handout|hungry|rouse|speaker"
    r"|told|whoever)(?:_|$)"
)
INTERFACE_CONSTANTS = frozenset({"CAME_BACK", "HANDED_OUT"})  # of what `/history` says
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def stumbling_words(text: str) -> list[str]:
    """Each word of the list that occurs in a text, with the better word."""
    text = " ".join(ORDINARY.sub(" ", _FENCED.sub(" ", text)).split())
    return [
        f"{found[0]!r}: write {better}"
        for word, better in WORDS.items()
        for found in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_documents_use_plain_words(path):
    assert not stumbling_words(path.read_text())


def prose_of(path: Path) -> Iterator[str]:
    """Docstrings, comments and texts of a module; a text is a string literal with a space in it."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if node.value in INTERFACE_NAMES:
                continue
            yield node.value


def openings_of(path: Path) -> Iterator[str]:
    """Each docstring of a module, also of an attribute, that begins as if it went on from a title."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = str(node.value.value)
            if _OPENING.match(text):
                yield f"{text.splitlines()[0]!r}: begin with what it is or does"


def packages() -> list[str]:
    """The installed packages and modules, and the benchmark, by their paths."""
    found = [path for path in (ROOT / "timerwheel").iterdir() if path.is_dir() and not path.is_symlink()]
    modules = (ROOT / "timerwheel").glob("*.py")
    rest = [ROOT / name for name in ("api", "rocketmq", "store", "spark_jobs", "bench")]
    return sorted(name_of(path) for path in [*found, *modules, *rest] if path.name != "__pycache__")


@pytest.mark.parametrize("package", packages())
def test_packages_use_plain_words(package):
    place = ROOT / package
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    found = {
        name_of(file): words
        for file in files
        if (words := [*stumbling_words("\n\n".join(prose_of(file))), *openings_of(file)])
    }
    assert not found


def house_words(tree: ast.AST) -> list[str]:
    """The names of a module that have words of this house."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                names.add(name)
    named = names - INTERFACE_CONSTANTS
    return sorted(name for name in named if HOUSE_WORDS.search(_CAMEL.sub("_", name).lower()))


@pytest.mark.parametrize("package", packages())
def test_names_of_the_code_are_words_of_the_field(package):
    place = ROOT / package
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    found = {name_of(file): words for file in files if (words := house_words(ast.parse(file.read_text())))}
    assert not found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def hand_out(x): ...", ["hand_out"]),
        ("class KafkaBooks: ...", ["KafkaBooks"]),
        ("self._told = 1", ["_told"]),
        ("group.bury(letters_desk)", ["bury", "letters_desk"]),
        ("Step.CAME_BACK", []),
        ("retold(book, deskew)", []),
    ],
)
def test_a_word_of_the_house_is_found_wherever_a_name_has_it(code, found):
    assert house_words(ast.parse(code)) == found


@pytest.mark.parametrize(
    ("text", "stumbles"),
    [
        ("the directory is no copy", True),
        ("there is no copy", False),
        ("There is no copy", False),
        ("the copy is no longer read", False),
        ("they are no more than ten", False),
        ("it may come again", True),
        ("scheduled `is no` words", False),
    ],
)
def test_a_word_of_the_list_is_found_where_a_reader_stumbles(text, stumbles):
    assert bool(stumbling_words(text)) == stumbles


def console_files() -> list[Path]:
    static = ROOT / "api/console/static"
    found = [*static.rglob("*.js"), *static.rglob("*.html")]
    return sorted(path for path in found if "vendor" not in path.parts)


@pytest.mark.parametrize("path", console_files(), ids=name_of)
def test_the_console_uses_plain_words(path):
    # Names in the code count too. Backticks are of templates here, whose texts are shown.
    assert not stumbling_words(path.read_text().replace("`", " "))


# ---------------------------------------------------------------------- the log format

_DUMP_LINE = re.compile(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})  +(\w+)  +(.*?)(?:   .*)?$")


def dump() -> list[tuple[int, bytes, str, str]]:
    """Offset, bytes, field and stated value of each line of the dump."""
    block = re.search(r"^```hex\n(.*?)^```$", text_of("doc/log-format.md"), re.MULTILINE | re.DOTALL)
    assert block
    found = [_DUMP_LINE.match(line) for line in block[1].splitlines()]
    assert all(found)
    return [(int(m[1]), bytes.fromhex(m[2]), m[3], m[4]) for m in found]


def dumped_record() -> bytes:
    return b"".join(data for _, data, _, _ in dump())


def test_hex_dump_decodes_to_the_values_stated_beside_it():
    data = dumped_record()
    assert fault(data) is None
    found = decode(data)
    at = 0
    for offset, part, field, value in dump():
        assert offset == at
        at += len(part)
        if field in HEADER_DTYPE.names:
            assert offset == HEADER_DTYPE.fields[field][1]
            assert len(part) == HEADER_DTYPE[field].itemsize
            assert getattr(found.header, field) == int(value, 0), field
        elif field == "padding":
            assert part == bytes(int(value))
        else:
            stated = getattr(found, field)
            assert (stated if isinstance(stated, str) else stated.decode()) == value == part.decode()
    assert at == found.header.size


def test_hex_dump_is_what_the_code_writes():
    found = decode(dumped_record())
    header = found.header
    made = encode(
        Kind.TIMER,
        found.topic.encode(),
        found.properties,
        found.body,
        store_ms=header.store_ms,
        due_ms=header.due_ms,
        enqueue_ms=header.enqueue_ms,
    )
    assert made == dumped_record()


def test_dumped_timer_becomes_the_message_and_has_the_id_that_the_page_states():
    text = section(text_of("doc/log-format.md"), "One record, byte by byte")
    data = dumped_record()
    header = decode(data).header
    (table,) = tables(text)
    stated = {name: int(value, 0) for name, value in table}
    made = replace(
        data,
        header,
        kind=Kind.MESSAGE,
        origin=segment.SEGMENT_HEADER_SIZE,
        root=segment.SEGMENT_HEADER_SIZE,
        root_crc=header.crc,
        store_ms=stated["store_ms"],
        due_ms=header.due_ms,
        rolls=0,
        level=0,
    )
    found = decode(made).header._asdict()
    assert {name: found[name] for name in found if found[name] != getattr(header, name)} == stated
    assert f"`{Ids(bytes(range(16))).encode(segment.SEGMENT_HEADER_SIZE, header.crc)}`" in text


def test_record_table_states_the_layout_of_the_header():
    layout, _ = tables(section(text_of("doc/log-format.md"), "Record"))
    (carried,) = tables(section(text_of("doc/log-format.md"), "Carried keys"))
    sizes = [int(size) for size, _ in carried]
    entry = dedup_key.KeyEntry(64, 1, bytes(16), 1_000, dedup_key.Ended(2_000, (bytes(16),)))
    assert sum(sizes) == len(bytes(16) + dedup.packed(bytes(16), entry)[0])
    assert len(layout) == len(HEADER_DTYPE.names)
    for (offset, size, field, _), name in zip(layout, HEADER_DTYPE.names, strict=True):
        assert field == name
        assert int(offset) == HEADER_DTYPE.fields[name][1]
        assert int(size) == HEADER_DTYPE[name].itemsize
    text = text_of("doc/log-format.md")
    assert f"A header of {HEADER_SIZE} bytes, then topic" in text
    assert f"# Log format {record.FORMAT_VERSION}\n" in text
    assert NO_OFFSET == 2**64 - 1
    assert {kind.name: int(kind) for kind in Kind} == {
        "MESSAGE": 1,
        "TIMER": 2,
        "CANCEL": 3,
        "HOLD": 4,
        "CONTROL": 5,
        "ACK": 6,
    }
    assert (record.FLAG_MORE, record.FLAG_EARLY, record.FLAG_LEASE) == (1, 2, 4)
    assert (record.FLAG_ENDED, record.FLAG_KEYED, record.FLAG_RUN) == (8, 16, 32)


def test_segment_table_states_the_layout_of_a_segment_header():
    (table,) = tables(section(text_of("doc/log-format.md"), "Segment"))
    ends = [int(offset) + int(size) for offset, size, _ in table]
    assert [int(row[0]) for row in table] == [0, *ends[:-1]]
    assert ends[-1] == segment.SEGMENT_HEADER_SIZE
    head = segment.encode_header(4096, b"0123456789abcdef", 1_700_000_000_000)
    assert head[:8].decode() == table[0][2].strip("`") == segment.MAGIC.decode()
    assert int.from_bytes(head[16:24], "little") == 4096
    assert head[24:40] == b"0123456789abcdef"
    assert int.from_bytes(head[40:48], "little") == 1_700_000_000_000
    assert segment.segment_name(0) in text_of("doc/log-format.md")


def test_sidecar_tables_state_its_head_and_its_rows():
    head, rows = tables(section(text_of("doc/log-format.md"), "Sidecar"))
    nothing = Table(np.empty(0, ROW_DTYPE), [])
    assert int(head[-1][0]) == len(sidecar.encode(nothing, 64, 64))
    assert head[0][2].strip("`") == sidecar.MAGIC.decode()
    assert [(name, kind.strip("`")) for name, kind in rows] == fields_of(ROW_DTYPE)
    assert f"rows of {ROW_DTYPE.itemsize} bytes" in head[-1][2]


def test_manifest_example_is_a_manifest():
    text = section(text_of("doc/log-format.md"), "The manifest `start`")
    found = msgspec.json.decode(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1], type=LogStart)
    assert found.queues == [("orders", 0, 51820)]
    assert f"offset {found.queues[0][2]}" in " ".join(text.split()).replace("queue offset", "offset")


# ---------------------------------------------------------------------- the index format


def fields_of(dtype: np.dtype) -> list[tuple[str, str]]:
    return [(name, kind.replace("|", "")) for name, kind in dtype.descr]


def test_index_page_states_row_types_and_sizes():
    text = text_of("doc/index-format.md")
    assert text.startswith(f"# Index format {INDEX_FORMAT}\n")
    head, entry, position, mark = tables(section(text, "Pages"))
    (key,) = tables(section(text, "Runs of keys"))
    assert int(head[-1][0]) == pages.HEAD_SIZE
    assert f"at most {pages.PAGE_ROWS_MAX}" in head[2][2]
    for table, dtype, title in (
        (entry, ENTRY_DTYPE, "Wheel entry"),
        (position, POSITION_DTYPE, "Queue position"),
        (mark, MARK_DTYPE, "Forwarding pointer"),
        (key, key_runs.REST_DTYPE, "Key of a run"),
    ):
        assert [(name, kind.strip("`")) for name, kind, _ in table] == fields_of(dtype)
        assert f"\n{title}, {dtype.itemsize} bytes" in text
    assert {row[0]: row[2] for row in entry}["op"] == f"{ADD} add, {REMOVE} remove"


def test_index_page_states_tables_and_sizes_of_keys():
    (table,) = tables(section(text_of("doc/index-format.md"), "Tables"))
    sizes = {row[0].strip("`"): int(row[2]) for row in table}
    sequence = keys.sequence_key(1)
    assert sizes == {
        "meta": len(b"state"),
        "wheel": len(keys.slot_prefix(0, 0) + sequence),
        "queues": len(keys.queue_prefix(0, 0) + sequence),
        "marks": len(keys.block_prefix(0) + sequence),
        "topics": 4,
        "segments": 8,
        "control": 16,
        "groups": 4,
        "leases": ITEM_KEY.size,
        "dead": 4,
        "keys": len(dedup_key.digest_of("topic", "key")),
        "key_ends": dedup.END.size + 16,
        "key_parts": key_runs.PART_KEY.size,
    }
    assert set(sizes) == set(TABLES)


def test_index_page_states_the_fields_of_the_state():
    (table,) = tables(section(text_of("doc/index-format.md"), "State"))
    assert [row[0].strip("`") for row in table] == list(IndexState.__struct_fields__)
    for name in Horizons._fields:
        assert f"`{name}`" in table[3][1]


# ---------------------------------------------------------------------- the wheel


def at_ms(text: str) -> int:
    since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since // dt.timedelta(milliseconds=1)


class LoneTimer:
    """The wheel with one timer in it, moved by the steps that `next_cascade` gives."""

    def __init__(self, due_ms: int, now_ms: int) -> None:
        self.due_ms = due_ms
        self.horizons = first_horizons(now_ms)
        self.level = Level(bisect_right(self.horizons, due_ms))

    @property
    def start_ms(self) -> int:
        return self.due_ms // SLOT_MS[self.level] * SLOT_MS[self.level]

    def catch_up(self, now_ms: int) -> None:
        while step := next_cascade(
            self.horizons, now_ms, lambda level: self.start_ms if level == self.level else None
        ):
            if isinstance(step, Cascade):
                assert (step.level, step.start_ms) == (self.level, self.start_ms)
                self.horizons = step.after
                self.level = Level(bisect_right(self.horizons, self.due_ms))
            else:
                self.horizons = step


def test_example_of_the_wheel_page_is_where_the_code_puts_it():
    text = section(text_of("doc/wheel.md"), "An example")
    (table,) = tables(text)
    sent, due = re.search(r"sent at (\S+), due .*?: (\S+)\. ", text.replace("\n", " ")).groups()
    sent_ms, due_ms = at_ms(sent), at_ms(due)
    assert due_ms - sent_ms == 40 * SLOT_MS[Level.DAY] + 5_250
    timer = LoneTimer(due_ms, sent_ms)
    assert table[0][0] == sent
    assert at_ms(re.search(r"`hour_until`, (\S+)$", table[0][3])[1]) == timer.horizons.hour_until
    for after, level, slot, _ in table:
        if level == "memory":
            break
        if after != sent:
            before = timer.level
            timer.catch_up(at_ms(after))
            assert timer.level == before, "it moves after this time, not at it"
        timer.catch_up(at_ms(after) + 1)
        assert LEVEL_NAMES[timer.level] == level
        assert timer.start_ms == at_ms(slot)
    assert timer.level == Level.SECOND
    near_ms = Settings(data=Path()).near_ms
    assert round_up(at_ms(after) + near_ms, 1_000) == timer.start_ms
    assert round_up(at_ms(after) + 1 + near_ms, 1_000) > timer.start_ms


def test_table_of_the_wheel_page_names_the_levels():
    (table,) = tables(text_of("doc/wheel.md").partition("## An example")[0])
    assert [row[0] for row in table] == list(LEVEL_NAMES)


# ---------------------------------------------------------------------- operations


def test_the_table_of_settings_follows_from_their_declarations():
    found = settings_table.match_table(text_of("doc/operations.md"))
    assert found
    assert found[0] == settings_table.table(), "run: python -m tests.harness.settings_table"


def test_operations_page_explains_every_finding_of_fsck():
    (table,) = tables(section(text_of("doc/operations.md"), "fsck"))
    explained = {code for row in table for code in _CODE.findall(row[0])}
    listed = fsck.Finding.__doc__.partition("Codes:")[2]
    assert explained == set(re.findall(r"[a-z]+_[a-z]+", listed))


# What no rule of the code covers: commands of the reader, and lines of the configuration file.
_TYPED = re.compile(r"(?:timerwheel|pip)\b.*|\w+ = \w+")
_PERCENT = re.compile(r"%[-+#0-9.]*[a-z]")


def template_of(node: ast.AST) -> str | None:
    """The text of a string or f-string, with `...` for each part that is filled in; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _PERCENT.sub("...", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template_of(part) or "..." for part in node.values)
    return None


@cache
def texts_of_product() -> frozenset[str]:
    """Every text in the code of the product, without its docstrings, and the names of its fields."""
    found = set()
    for package in ("timerwheel", "api", "rocketmq", "store", "spark_jobs"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            nodes = list(ast.walk(tree))
            docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(node.target.id)
                elif id(node) not in docstrings and (text := template_of(node)) is not None:
                    found.add(text)
    return frozenset(found)


def occurs(quote: str) -> bool:
    """Whether some text of the code contains a quoted one; a quoted word must be the whole text."""
    texts = texts_of_product()
    if " " not in quote:
        return quote in texts
    parts = [part.strip() for part in quote.split("...")]
    wanted = re.compile(r".*?".join(map(re.escape, parts)), re.DOTALL)
    return any(wanted.search(text) for text in texts)


def test_quoted_texts_of_the_operations_page_occur_in_the_code():
    (rows,) = tables(section(text_of("doc/operations.md"), "When something is wrong"))
    signs = [code for row in rows for code in _CODE.findall(row[0])]
    remarks = [code for row in rows for cell in row[1:] for code in _CODE.findall(cell) if " " in code]
    quotes = [*signs, *(code for code in remarks if not _TYPED.fullmatch(code))]
    assert len(quotes) > 40
    stale = [quote for quote in quotes if not occurs(quote)]
    assert not stale


def test_quoted_statuses_of_the_operations_page_are_those_of_their_codes():
    (rows,) = tables(section(text_of("doc/operations.md"), "When something is wrong"))
    stated = [found for row in rows for found in re.findall(r"\b(\d{3}) `(\w+)`", row[0])]
    assert len(stated) > 5
    for status, code in stated:
        assert PROBLEMS[code][0] == int(status), code


@pytest.mark.parametrize(
    ("quote", "there"),
    [
        ("... is in use by ...; stop it first", True),
        ("... is in use by ...; end it first", False),
        ("the wall clock was stepped by ... ms", True),
        ("the wall clock was set by ... ms", False),
        ("locked", True),
        ("lock", True),
        ("Another process owns the data directory", False),  # a docstring
        ("log_fail", False),
    ],
)
def test_a_quote_is_found_by_its_fixed_parts_and_not_in_docstrings(quote, there):
    assert occurs(quote) == there
