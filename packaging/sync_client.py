"""Writes `timerwheel/client/sync_client.py` from the asynchronous client: same methods, types, docstrings.

    python packaging/sync_client.py            writes it
    python packaging/sync_client.py --check    exits with 1 if it is not what this would write

Each public method of the classes below becomes one that waits for the asynchronous one. What a method does
is written once, in the asynchronous client, and runs on the client's own event loop. So a new method of these
classes needs nothing but a run of this program. Only what is in `BY_HAND` has a body of its own.
"""

import argparse
import ast
import copy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "timerwheel" / "client" / "sync_client.py"
# class -> its module in timerwheel/client, in the order in which they are written
CLASSES = {
    "Lease": "lease",
    "Group": "group",
    "DeadLetters": "dead_letters",
    "Schedules": "schedules",
    "Subscriptions": "subscriptions",
    "Tasks": "tasks",
    "Acks": "acks",
    "Client": "client",
}
# What only the asynchronous client itself uses.
LEFT_OUT = {
    "Client": {"open", "close", "forget"},
    "Group": {"path"},
    "Lease": {"group", "invisible_ms", "hold_until_ms", "acknowledged", "failed"},
}
HANDLER = "Callable[[SyncLease], object]"
# Types that differ.
TYPES = {name: f"Sync{name}" for name in CLASSES} | {"AsyncIterator": "Iterator", "Handler": HANDLER}
BY_HAND = {
    "Group.consume": """
run_consumer(
    self._loop,
    lambda handle, stopping: self._group.consume(handle, {options}),
    lambda lease: handler(SyncLease(self._loop, lease)),
    concurrency,
    stop,
)
""",
}
# What docstrings call otherwise in a program without an event loop.
WORDS = (
    ("await ", ""),
    (" After a cancellation it is left to expire.", ""),
    ("async with", "with"),
    ("async for", "for"),
    (
        "a cancellation cancels them, and their messages are",
        "Ctrl-C does the same. A second Ctrl-C leaves them to be",
    ),
    ("Run `handler` on each message,", "Run `handler` in a thread on each message,"),
)
MARGIN = " " * 4
HEADER = '''"""The synchronous client: `Client` for threads, with the same methods, types and errors.

Written by `packaging/sync_client.py` from the asynchronous client: change that, and run it again.

    with SyncClient("http://127.0.0.1:8686") as client:
        client.send("orders", "close order 17", delay="30m")
        for lease in client.group("orders", "closers").messages():
            with lease:
                print(lease.text)

All threads may share one client. It works without `with` too: the first call opens it, and it is closed at
the end of the program. Calls run on the client's own event loop, in a thread of its own.
A call in a coroutine works, and blocks the coroutine's event loop until it returns. A forked child opens
connections of its own; a lease that its parent holds is not extended by the child.
"""
'''
CLOSE = '''
def __enter__(self) -> Self:
    """Open the client; does not call the service yet."""
    self._loop.open()
    return self

def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Close the client."""
    self.close()

def close(self) -> None:
    """Close every connection: running calls fail with `UnreachableError`, leases are not extended."""
    self._loop.close()
'''
ENTER_LEASE = '''
def __enter__(self) -> Self:
    """Enter the block; calls nothing."""
    return self

def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Acknowledge or return the message, unless the block did."""
    self._loop.run(self._lease.__aexit__(kind, error, trace))
'''


class Source:
    """A module of the asynchronous client: its class, and where its names come from."""

    def __init__(self, class_name: str, module: str) -> None:
        self.name = class_name
        self.module = f"timerwheel.client.{module}"
        self.tree = ast.parse((ROOT / "timerwheel" / "client" / f"{module}.py").read_text())
        [self.class_] = [
            node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == class_name
        ]
        self.imports: dict[str, str] = {}
        for node in self.tree.body:
            self._note(node)

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                renamed = f" as {name.asname}" if name.asname else ""
                self.imports[name.asname or name.name] = f"from {node.module} import {name.name}{renamed}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                renamed = f" as {name.asname}" if name.asname else ""
                self.imports[name.asname or name.name] = f"import {name.name}{renamed}"
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            self.imports[node.name] = f"from {self.module} import {node.name}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.imports[target.id] = f"from {self.module} import {target.id}"


class Synchronous(ast.NodeTransformer):
    """Turns the types of the asynchronous client into those of the synchronous one."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Rename a type."""
        if node.id in TYPES:
            return ast.parse(TYPES[node.id], mode="eval").body
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace the one type of asyncio."""
        if ast.unparse(node) == "asyncio.Event":
            return ast.parse("threading.Event", mode="eval").body
        self.generic_visit(node)
        return node


def written() -> str:
    """Return the module, in the project's style."""
    sources = [Source(name, module) for name, module in CLASSES.items()]
    classes = [_class(source) for source in sources]
    body = "\n\n".join(classes)
    imports = _imports(body, sources)
    return _formatted(
        f"{HEADER}\n{imports}\n\n__all__ = {sorted(map('Sync{}'.format, CLASSES))!r}\n\n{body}\n"
    )


def _class(source: Source) -> str:
    methods = [_constructor(source)]
    for node in source.class_.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not node.name.startswith("_") and node.name not in LEFT_OUT.get(source.name, ()):
                methods.append(_method(source, node))
        elif isinstance(node, ast.Assign):
            methods.append(ast.unparse(node))
    docstring = _docstring(ast.get_docstring(source.class_) or "")
    if source.name == "Client":
        docstring = _docstring("One connection pool to one service; safe to share between threads.")
        methods.insert(1, CLOSE)
    if source.name == "Lease":
        methods.insert(1, ENTER_LEASE)
    inner = "\n\n".join(methods)
    indented = "\n".join(f"    {line}" if line else "" for line in f"{docstring}\n\n{inner}".splitlines())
    return f"class Sync{source.name}:\n{indented}\n"


def _constructor(source: Source) -> str:
    """Return `__init__`, and a property for each public attribute."""
    [init] = [
        node for node in source.class_.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    inner = source.name.lower()
    if source.name != "Client":
        lines = [
            f"def __init__(self, loop: Portal, {inner}: {source.name}) -> None:",
            "    self._loop = loop",
            f"    self._{inner} = {inner}",
        ]
        for name, kind, docstring in _attributes(source, init):
            shown = docstring or f"The {name} of this {inner}."
            lines += ["", "@property", f"def {name}(self) -> {kind}:"]
            lines += [f'    """{shown}"""', f"    return self._{inner}.{name}"]
        return "\n".join(lines)
    head = _signature(init)
    return (
        f"{head}\n    {_docstring(ast.get_docstring(init) or '', MARGIN)}\n"
        f"    self._client = Client({_arguments(init)})\n"
        "    self._loop = LoopThread(self._client)\n"
        "    self.url = self._client.url\n"
        "    self.schedules = SyncSchedules(self._loop, self._client.schedules)\n"
        "    self.subscriptions = SyncSubscriptions(self._loop, self._client.subscriptions)\n"
        "    self.tasks = SyncTasks(self._loop, self._client.tasks)\n"
    )


def _attributes(source: Source, init: ast.FunctionDef) -> list[tuple[str, str, str]]:
    """Return name, type and docstring of each public attribute that `__init__` sets."""
    kinds = {each.arg: ast.unparse(each.annotation) for each in init.args.args if each.annotation is not None}
    found = []
    for at, node in enumerate(init.body):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
            continue
        name = node.targets[0].attr
        if name.startswith("_") or name in LEFT_OUT.get(source.name, ()):
            continue
        kind = kinds.get(ast.unparse(node.value)) or type(ast.literal_eval(node.value)).__name__
        after = init.body[at + 1] if at + 1 < len(init.body) else None
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        found.append((name, kind, str(after.value.value) if said else ""))
    return found


def _method(source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    inner = f"self._{source.name.lower()}"
    docstring = _docstring(ast.get_docstring(node) or "", MARGIN)
    head = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list) + _signature(node)
    if f"{source.name}.{node.name}" in BY_HAND:
        named = [f"{each.arg}={each.arg}" for each in node.args.kwonlyargs]
        options = ", ".join(one for one in named if one != "stop=stop") + ", stop=stopping"
        body = BY_HAND[f"{source.name}.{node.name}"].replace("{options}", options).strip()
    elif node.decorator_list:
        body = f"return {inner}.{node.name}"
    else:
        body = _body(node, f"{inner}.{node.name}({_arguments(node)})")
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{head}\n    {docstring}\n{indented}"


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef, call: str) -> str:
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    if returns.startswith("AsyncIterator["):
        item = returns.removeprefix("AsyncIterator[").removesuffix("]")
        items = f"self._loop.iterate({call})"
        if item in CLASSES:  # `map` keeps no reference to what it has yielded
            items = f"map(partial(Sync{item}, self._loop), {items})"
        return f"yield from {items}"
    if isinstance(node, ast.FunctionDef):
        return f"return Sync{returns}(self._loop, {call})" if returns in CLASSES else f"return {call}"
    return f"self._loop.run({call})" if returns == "None" else f"return self._loop.run({call})"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = Synchronous().visit(copy.deepcopy(node.args))
    returns = Synchronous().visit(copy.deepcopy(node.returns)) if node.returns is not None else None
    shown = "None" if returns is None else ast.unparse(returns)
    untyped = shown == "Any" or any(
        each.annotation is not None and ast.unparse(each.annotation) == "Any"
        for each in [*node.args.args, *node.args.kwonlyargs]
    )
    noqa = "  # noqa: ANN401 - as in the asynchronous client" if untyped else ""
    return f"def {node.name}({ast.unparse(arguments)}) -> {shown}:{noqa}"


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = node.args
    places = [each.arg for each in [*given.posonlyargs, *given.args] if each.arg != "self"]
    return ", ".join([*places, *(f"{each.arg}={each.arg}" for each in given.kwonlyargs)])


def _docstring(text: str, margin: str = "") -> str:
    for word, other in WORDS:
        text = text.replace(word, other)
    lines = text.splitlines()
    if len(lines) == 1:
        return f'"""{text}"""'
    more = [f"{margin}{line}".rstrip() for line in lines[1:]]
    return "\n".join([f'"""{lines[0]}', *more, f'{margin}"""'])


def _imports(body: str, sources: list[Source]) -> str:
    """Return the imports of all names that the body has."""
    names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    known = {
        "Callable": "from collections.abc import Callable",
        "Iterator": "from collections.abc import Iterator",
        "LoopThread": "from timerwheel.client.loop_thread import LoopThread",
        "Portal": "from timerwheel.client.loop_thread import Portal",
        "Self": "from typing import Self",
        "TracebackType": "from types import TracebackType",
        "partial": "from functools import partial",
        "run_consumer": "from timerwheel.client.blocking_consumer import run_consumer",
        "threading": "import threading",
    }
    for source in sources:
        for name in names & source.imports.keys():
            if known.setdefault(name, source.imports[name]) != source.imports[name]:
                raise SystemExit(f"{name} has two meanings: {known[name]}; {source.imports[name]}")
    return "\n".join(sorted({known[name] for name in names if name in known}))


def _formatted(text: str) -> str:
    sorted_text = _ruff(text, "check", "--fix-only", "--select", "I,F401")
    return _ruff(sorted_text, "format")


def _ruff(text: str, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("ruff")), *arguments, "--quiet"]
    command += ["--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main() -> int:
    """Write the module, or check it."""
    parser = argparse.ArgumentParser(description="Write the synchronous client from the asynchronous one.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if it would change")
    given = parser.parse_args()
    text = written()
    if given.check:
        return 0 if TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
