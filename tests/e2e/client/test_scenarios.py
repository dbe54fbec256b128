"""All clients run the same scenarios, `clients/scenarios.json`, against one real service.

The Python clients take the steps here, in both forms; those for TypeScript and Go in programs of their own.
"""

import asyncio
import inspect
import json
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import ROOT, serving
from tests.harness.scripted_http import CLOSE, HANG, Reply, ScriptedHttp, problem, scripted
from timerwheel import Client, SyncClient
from timerwheel.client import ClientError, Exponential, GroupConfig

CLIENTS = ROOT / "clients"
FILE = CLIENTS / "scenarios.json"
SCENARIOS = json.loads(FILE.read_text())["scenarios"]
NAMES = [one["name"] for one in SCENARIOS]
NPM = "npm install --no-package-lock --prefix clients/typescript"
NPM_VARIABLE = "TIMERWHEEL_TEST_NPM"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("scenarios") / "data", "--redelivery-delay", "1ms") as service:
        yield service.url


# ---------------------------------------------------------------------- Python, both clients


class Steps:
    """Takes steps with one of the Python clients; `call` waits for what a method returns."""

    def __init__(self, client: Client | SyncClient, call: Callable[[Any], Any], prefix: str) -> None:
        self._client = client
        self._call = call
        self._prefix = prefix
        self._saved: dict[str, Any] = {}

    def run(self, steps: list[dict[str, Any]]) -> None:
        for raw in steps:
            step = {name: self._value(value) for name, value in raw.items()}
            if "error" in step:
                assert self._refusal(step) == step["error"], raw
                continue
            found = getattr(self, step["do"])(step)
            self._saved[step.get("save", "")] = found
            for name, wanted in step.get("expect", {}).items():
                shown = found.text if name == "body" else getattr(found, name)
                assert shown == self._value(wanted), raw

    def _value(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("$"):
            name, _, field = value[1:].partition(".")
            return getattr(self._saved[name], field)
        return value.replace("{p}", self._prefix) if isinstance(value, str) else value

    def _refusal(self, step: dict[str, Any]) -> str:
        """The code of the error, or of the result, that a step ends with."""
        try:
            found = getattr(self, step["do"])(step)
        except ClientError as error:
            return str(error.code)
        return next(one.code for one in found if not one.ok)

    def _group(self, step: dict[str, Any]) -> Any:
        return self._client.group(step["topic"], step["group"])

    def send(self, step: dict[str, Any]) -> Any:
        body = {"json": step["json"]} if "json" in step else {"body": step["body"]}
        delay = {"delay_ms": step["delay_ms"]} if "delay_ms" in step else {}
        return self._call(self._client.send(step["topic"], **body, **delay, dedup_key=step.get("key")))

    def send_many(self, step: dict[str, Any]) -> None:
        delay = {"delay_ms": step["delay_ms"]} if "delay_ms" in step else {}
        many = [{"topic": step["topic"], "body": body, **delay} for body in step["bodies"]]
        assert len(self._call(self._client.send_many(many))) == step["count"]

    def get(self, step: dict[str, Any]) -> Any:
        return self._call(self._client.get(step["id"]))

    def recall(self, step: dict[str, Any]) -> Any:
        return self._call(self._client.recall(step["id"]))

    def reschedule(self, step: dict[str, Any]) -> Any:
        return self._call(self._client.reschedule(step["id"], delay_ms=step["delay_ms"]))

    def receive(self, step: dict[str, Any]) -> Any:
        found = self._call(self._group(step).receive(step["max"], wait_ms=step["wait_ms"], create=True))
        assert len(found) == step["count"]
        if "bodies" in step:
            assert [one.text for one in found] == step["bodies"]
        if "json" in step:
            assert found[0].json() == step["json"]
        return found[0] if found else None

    def ack(self, step: dict[str, Any]) -> Any:
        return self._call(self._group(step).ack([step["receipt"]]))

    def extend(self, step: dict[str, Any]) -> Any:
        return self._call(self._group(step).extend([step["receipt"]], step["lasts_ms"]))

    def nack(self, step: dict[str, Any]) -> Any:
        receipts, why = [step["receipt"]], step["reason"]
        return self._call(self._group(step).nack(receipts, delay_ms=step["delay_ms"], reason=why))

    def put_group(self, step: dict[str, Any]) -> None:
        backoff = Exponential(initial_ms=step["backoff_ms"], factor=1.0, max_ms=step["backoff_ms"])
        self._call(self._group(step).put(GroupConfig(backoff=backoff)))

    def consume(self, step: dict[str, Any]) -> None:
        """Each client has the kind of handler and of event that its programs have."""
        handled: Counter[str] = Counter()
        is_async = isinstance(self._client, Client)
        stop: Any = asyncio.Event() if is_async else threading.Event()
        lock = threading.Lock()

        def handle(lease: Any) -> None:
            with lock:
                handled[lease.text] += 1
                count, total = handled[lease.text], handled.total()
            if total == step["until"]:
                stop.set()
            if lease.text == step["fail_once"] and count == 1:
                raise RuntimeError("not at first")

        async def handle_it(lease: Any) -> None:
            handle(lease)

        handler = handle_it if is_async else handle
        group, limit = self._group(step), step["concurrency"]
        self._call(group.consume(handler, concurrency=limit, stop=stop, create=True))
        assert dict(handled) == step["handled"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_the_synchronous_client_takes_all_steps(url: str, scenario: dict[str, Any]) -> None:
    with SyncClient(url) as client:
        Steps(client, lambda found: found, "sync-").run(scenario["steps"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_the_asynchronous_client_takes_all_steps(url: str, scenario: dict[str, Any]) -> None:
    with asyncio.Runner() as runner:

        async def wait_for(found: Any) -> Any:
            return await found if inspect.isawaitable(found) else found

        def call(found: Any) -> Any:
            return runner.run(wait_for(found))

        async def opened() -> Client:
            return await Client(url).__aenter__()

        client = runner.run(opened())
        try:
            Steps(client, call, "async-").run(scenario["steps"])
        finally:
            call(client.close())


# ---------------------------------------------------------------------- TypeScript and Go


def run(*command: object, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client for TypeScript, compiled; skipped without its packages."""
    if shutil.which("node") is None:
        pytest.skip(f"node is not installed; then: {NPM}")
    modules = Path(os.environ.get(NPM_VARIABLE, CLIENTS / "typescript")) / "node_modules"
    if not all((modules / name).is_dir() for name in ("openapi-fetch", "typescript", "@types/node")):
        pytest.skip(f"packages are missing: {NPM}")
    made = tmp_path_factory.mktemp("typescript")
    for name in ("src", "examples", "scenarios"):
        shutil.copytree(CLIENTS / "typescript" / name, made / name)
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(CLIENTS / "typescript" / name, made)
    (made / "node_modules").symlink_to(modules.resolve())
    run("node", "node_modules/typescript/bin/tsc", "--project", made, cwd=made)
    return made


def test_the_typescript_client_takes_all_steps(url: str, typescript: Path) -> None:
    out = run("node", "dist/scenarios/run.js", FILE, "ts-", cwd=typescript, TIMERWHEEL_URL=url)
    assert out.splitlines() == [f"ok: {name}" for name in NAMES]


def test_the_typescript_example_closes_the_order_that_is_not_paid(url: str, typescript: Path) -> None:
    assert run("node", "dist/examples/order-timeout.js", cwd=typescript, TIMERWHEEL_URL=url) == (
        "closed order 18\n"
    )


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the client for Go, built; skipped without Go or its modules."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    made = tmp_path_factory.mktemp("go")
    listed = subprocess.run(
        ["go", "mod", "download"], check=False, cwd=CLIENTS / "go", capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip(f"the modules of clients/go cannot be had: {listed.stderr[:200]}")
    run("go", "vet", "./...", cwd=CLIENTS / "go")
    for name in ("scenarios", "examples/ordertimeout"):
        run("go", "build", "-o", made / Path(name).name, f"./{name}", cwd=CLIENTS / "go")
    return made


def test_the_go_client_takes_all_steps(url: str, go: Path) -> None:
    out = run(go / "scenarios", FILE, "go-", cwd=go, TIMERWHEEL_URL=url)
    assert out.splitlines() == [f"ok: {name}" for name in NAMES]


def test_the_go_example_closes_the_order_that_is_not_paid(tmp_path: Path, go: Path) -> None:
    with serving(tmp_path / "data") as service:
        out = run(go / "ordertimeout", cwd=go, TIMERWHEEL_URL=service.url)
    assert out == "closed order 18\n"


# ---------------------------------------------------------------------- TypeScript and Go, when calls fail

STORED = {"id": "1", "topic": "t", "due_ms": 1, "state": "scheduled"}
GOOD = Reply(201, STORED)
LIMITED = problem(429, "rate_limited", 1)
LIMITED_FOR_LONG = problem(429, "rate_limited", 3_600)
HELD = {
    **STORED,
    "queue": 0,
    "enqueue_ms": 1,
    "properties": {},
    "state": "delivered",
    "body": "x",
    "receipt": "r",
    "attempt": 1,
    "invisible_until_ms": 1,
}
TAKEN = Reply(200, {"messages": [HELD]})
SETTLED = Reply(200, {"results": [{"receipt": "r", "ok": True}]})
SEND = {"do": "send", "topic": "t", "body": "x"}
CONSUME = {"do": "consume", "topic": "t", "group": "g", "concurrency": 1, "until": 1, "handled": {"x": 1}}
LIMIT_S = 12  # only keeps a failure from hanging


class Program:
    """The program of a client that takes steps."""

    def __init__(self, command: Sequence[object], cwd: Path, file: Path) -> None:
        self._command = [*map(str, command), str(file), ""]
        self._cwd = cwd
        self._file = file

    async def takes(
        self, service: ScriptedHttp, step: dict[str, Any], *, timeout_ms: int = 30_000, speed: int = 1
    ) -> bool:
        """Whether the step succeeded. Only a program in TypeScript takes it with another speed than 1."""
        self._file.write_text(json.dumps({"scenarios": [{"name": "one", "steps": [step]}]}))
        limits = {"TIMERWHEEL_URL": service.url, "TIMERWHEEL_TIMEOUT_MS": str(timeout_ms)}
        limits["TIMERWHEEL_SPEED"] = str(speed)
        environment = {**os.environ, **limits}
        process = await asyncio.create_subprocess_exec(*self._command, cwd=self._cwd, env=environment)
        try:
            async with asyncio.timeout(LIMIT_S):
                return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture(params=["typescript", "go"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    made = request.getfixturevalue(request.param)
    command = {"typescript": ["node", "dist/scenarios/run.js"], "go": [made / "scenarios"]}[request.param]
    return Program(command, made, tmp_path / "steps.json")


def _ends(service: ScriptedHttp) -> list[str]:
    return [request.path.rpartition("/")[2] for request in service.requests]


async def test_a_worker_waits_for_a_limited_rate_and_goes_on(program: Program) -> None:
    async with scripted(GOOD) as service:
        service.by_end = {"/receive": [LIMITED, TAKEN], "/ack": [*[LIMITED] * 2, SETTLED]}
        assert await program.takes(service, CONSUME)
        assert _ends(service) == ["receive", "receive", "ack", "ack", "ack"]
        service.by_end = {"/receive": [TAKEN], "/nack": [LIMITED, SETTLED]}
        assert await program.takes(service, CONSUME | {"fail_once": "x"})
        assert _ends(service)[5:] == ["receive", "nack", "nack"]


@pytest.mark.parametrize(("end", "fails"), [("ack", ""), ("nack", "x")])
async def test_a_worker_that_stops_does_not_wait_for_a_rate_that_lets_nothing_through_for_long(
    program: Program, end: str, fails: str
) -> None:
    async with scripted(GOOD) as service:
        service.by_end = {"/receive": [TAKEN], f"/{end}": [LIMITED_FOR_LONG]}
        assert await program.takes(service, CONSUME | {"fail_once": fails})
        assert _ends(service) == ["receive", end]


async def test_a_worker_that_stops_because_of_an_error_does_not_wait_for_long_either(
    program: Program,
) -> None:
    async with scripted(GOOD) as service:
        gone = problem(404, "unknown_topic")
        service.by_end = {"/receive": [TAKEN, gone], "/nack": [LIMITED_FOR_LONG]}
        step = CONSUME | {"concurrency": 2, "until": 2, "fail_once": "x"}
        assert not await program.takes(service, step)
        assert sorted(_ends(service)) == ["nack", "receive", "receive"]


@pytest.mark.parametrize(
    ("extension", "then"), [(LIMITED_FOR_LONG, ["receive", "ack"]), (SETTLED, ["nack", "receive", "ack"])]
)
async def test_nobody_waits_for_a_limited_rate_beyond_the_end_of_the_lease(
    typescript: Path, tmp_path: Path, extension: Reply, then: list[str]
) -> None:
    """That of Go is in its own tests."""
    program = Program(["node", "dist/scenarios/run.js"], typescript, tmp_path / "steps.json")
    async with scripted(GOOD) as service:
        nacks = [problem(429, "rate_limited", 45), SETTLED]
        service.by_end = {"/receive": [TAKEN], "/nack": nacks, "/extend": [extension], "/ack": [SETTLED]}
        step = CONSUME | {"fail_once": "x", "until": 2, "handled": {"x": 2}}
        assert await program.takes(service, step, speed=20)
        assert [end for end in _ends(service) if end != "extend"] == ["receive", "nack", *then]


async def test_a_time_beyond_what_a_timer_can_have_is_not_over_at_once(
    typescript: Path, tmp_path: Path
) -> None:
    program = Program(["node", "dist/scenarios/run.js"], typescript, tmp_path / "steps.json")
    async with scripted(problem(429, "rate_limited", 3_000_000_000)) as service:
        await program.takes(service, CONSUME, speed=60)  # which gives up after a minute
        assert len(service.requests) == 1


def test_the_go_client_passes_its_own_tests(go: Path) -> None:
    assert go.is_dir()
    run("go", "test", ".", cwd=CLIENTS / "go")


async def test_a_send_waits_for_a_limited_rate(program: Program) -> None:
    async with scripted(LIMITED, GOOD) as service:
        assert await program.takes(service, SEND)
        assert len(service.requests) == 2
    async with scripted(problem(429, "rate_limited", 60), GOOD) as service:
        assert not await program.takes(service, SEND), "that is beyond the time for repeats"
        assert len(service.requests) == 1


async def test_a_worker_leases_for_as_long_as_it_extends(program: Program) -> None:
    async with scripted(GOOD) as service:
        service.by_end = {"/receive": [TAKEN], "/ack": [SETTLED]}
        assert await program.takes(service, CONSUME | {"concurrency": 2_000})
        wanted = service.requests[0].content
        assert (wanted["invisible_ms"], wanted["max"]) == (30_000, 1_000)


async def test_what_replaces_is_sent_again_only_if_it_was_certainly_not_stored(program: Program) -> None:
    replacing = SEND | {"key": "k", "on_duplicate": "replace"}
    async with scripted(CLOSE, GOOD) as service:
        assert not await program.takes(service, replacing)
        assert len(service.requests) == 1
    async with scripted(problem(500, "outcome_unknown"), GOOD) as service:
        assert not await program.takes(service, replacing)
        assert len(service.requests) == 1
    async with scripted(LIMITED, problem(503, "not_ready", 1), GOOD) as service:
        assert await program.takes(service, replacing)
        assert len(service.requests) == 3
    async with scripted(CLOSE, GOOD) as service:
        assert await program.takes(service, SEND | {"key": "k", "on_duplicate": "return"})
        assert [request.content["dedup_key"] for request in service.requests] == ["k", "k"]


@pytest.mark.parametrize("chosen", [{"on_duplicate": "replace"}, {"after_recall": "0" * 24}])
async def test_no_key_is_made_for_what_says_something_of_its_key(
    program: Program, chosen: dict[str, str]
) -> None:
    async with scripted(problem(400, "illegal_key")) as service:
        assert await program.takes(service, SEND | chosen | {"error": "illegal_key"})
        assert "dedup_key" not in service.requests[0].content


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
async def test_what_no_service_answers_ends_a_worker(program: Program, kind: str) -> None:
    async with scripted(Reply(404, "<h1>gone</h1>", {"Content-Type": kind})) as service:
        assert not await program.takes(service, CONSUME)
        assert len(service.requests) == 1


async def test_a_proxy_without_an_answer_is_waited_for(program: Program) -> None:
    async with scripted(Reply(502, "<h1>bad gateway</h1>", {"Content-Type": "text/html"}), GOOD) as service:
        assert await program.takes(service, SEND)


async def test_a_call_that_takes_too_long_is_given_up(program: Program) -> None:
    async with scripted(HANG, GOOD) as service:
        assert await program.takes(service, SEND, timeout_ms=1_000)
        assert len({request.content["dedup_key"] for request in service.requests}) == 1


async def test_a_reason_is_cut_between_characters(program: Program) -> None:
    async with scripted(GOOD) as service:
        service.by_end = {"/receive": [TAKEN], "/nack": [SETTLED]}
        for before in (499, 498, 492, 491):  # with "Error: ", or without
            failing = CONSUME | {"fail_once": "x", "fail_with": "x" * before + "\N{ALARM CLOCK}" * 20}
            assert await program.takes(service, failing)
    for request in service.requests:
        if request.path.endswith("/nack"):
            request.content["reason"].encode()  # refuses half of a pair
            assert len(request.content["reason"]) == 500
