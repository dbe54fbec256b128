"""Tests reach what they test by its public names: what is private may change without a test that breaks."""

import ast
import contextlib
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORD = re.compile(r"\w+")
IMPORT = re.compile(r"^\s*(?:import|from) ", re.MULTILINE)
PRODUCT = ("timerwheel", "store", "api", "rocketmq", "spark_jobs", "bench")
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}  # public by their documentation

UNMADE = "an answer whose client goes while it is made"
UNWRITTEN = "a stream that pyarrow reads and does not write is one of its own with other metadata"
ALLOWED = {
    ("test_http_fast_consumes.py", "_breathe"): UNMADE,
    ("test_http_fast_consumes.py", "_stream_of"): UNMADE,
    ("test_arrow_stream.py", "_BUFFERS"): UNWRITTEN,
    ("test_arrow_stream.py", "_FlatTable"): UNWRITTEN,
    ("test_arrow_stream.py", "_HEADER"): UNWRITTEN,
    ("commands.py", "_exit"): "the one of os: no name of the product",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def product_files() -> Iterator[Path]:
    for folder in PRODUCT:
        yield from (path for path in (ROOT / folder).rglob("*.py") if path == path.resolve())


@cache
def private_names() -> frozenset[str]:
    """Every private name that the product gives to a function, class, module constant or attribute."""
    found = set()
    for path in product_files():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
    return frozenset(filter(is_private, found))


def reached(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names behind a dot, imported, or given as text to a function that gets or sets an attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                yield name, node.lineno
            case ast.ImportFrom(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="getattr" | "setattr"),
                args=arguments,
            ):
                texts = (one.value for one in arguments if isinstance(one, ast.Constant))
                yield from ((text.rpartition(".")[2], node.lineno) for text in texts if isinstance(text, str))


def programs(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """The programs that other processes run, which tests have as texts; f-strings without what is put in."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if IMPORT.search(text):
                pass
            case ast.JoinedStr(values=parts):
                text = "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in parts)
                if IMPORT.search(text) is None:
                    continue
            case _:
                continue
        with contextlib.suppress(SyntaxError):
            yield ast.parse(textwrap.dedent(text)), node.lineno


def all_reached(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What `reached` finds, in the programs of the tree too."""
    yield from reached(tree)
    for program, line in programs(tree):
        yield from ((name, line) for name, _ in reached(program))


def reached_in(text: str) -> set[str]:
    return {name for name, _ in all_reached(ast.parse(text)) if is_private(name)}


def test_no_test_reaches_a_private_name_of_the_product_but_for_a_reason():
    used, wrong = set(), []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        if path == Path(__file__):
            continue  # its texts are examples
        if private_names().isdisjoint(WORD.findall(text)):
            continue  # which saves most of the time
        for name, line in all_reached(ast.parse(text)):
            if not is_private(name) or name not in private_names():
                continue
            used.add((path.name, name))
            if (path.name, name) not in ALLOWED:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not wrong, "\n".join(wrong)
    assert sorted(ALLOWED.keys() - used) == [], "no longer reached: take it from the list"


def test_each_way_to_reach_a_name_is_seen():
    assert reached_in("engine._tasks; self._own; row._replace(a=1); x.__dict__") == {"_tasks"}
    assert reached_in("from timerwheel.index.swap import _exchange as it, swap_in") == {"_exchange"}
    assert reached_in("patch.setattr(swap, '_one', f); patch.setattr('a.b._two', 1)") == {"_one", "_two"}
    assert reached_in("getattr(engine, '_fail')") == {"_fail"}
    assert reached_in('RUN = "import timerwheel.engine as e\\ne._guarded()"') == {"_guarded"}
    assert reached_in('RUN = f"""\\n    import sys\\n    {code}._one(sys)\\n    """') == {"_one"}
    assert reached_in('"says import x._two"') == set()
    assert {"_apply", "_spawn", "_NEXT"} <= private_names()
