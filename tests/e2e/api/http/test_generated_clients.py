"""Clients that generators make from the document work: one in Python and one in TypeScript.

openapi-python-client and openapi-typescript run with their usual options; the clients call a real service.
"""

import asyncio
import functools
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import types
import typing
from pathlib import Path

import orjson
import pytest

from tests.harness.route_table import route_table
from timerwheel.api.http import openapi

CLIENT = "generated_timerwheel_client"
HOUR_MS = 3_600_000
TYPESCRIPT = Path(__file__).parent / "typescript_client"
# Where the three packages lie; a test fetches nothing.
NPM = "npm install --prefix DIR openapi-typescript@7 openapi-fetch@0 typescript@5; TIMERWHEEL_TEST_NPM=DIR"
NPM_VARIABLE = "TIMERWHEEL_TEST_NPM"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """The document as a file; that it is the service's own is a test below."""
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(orjson.dumps(openapi.document(route_table(path.parent))))
    return path


def _run(*command, cwd, **variables):
    environment = {**os.environ, **variables}
    command = list(map(str, command))
    done = subprocess.run(command, check=False, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_the_service_answers_with_the_document_of_which_the_clients_are_made(document, service):
    assert (await service.call("GET", "/openapi.json")).content == orjson.loads(document.read_bytes())


# ---------------------------------------------------------------------- Python


@pytest.fixture(scope="module")
def generated(document, tmp_path_factory):
    """Imports a module of the client that was generated, and what the generator said."""
    directory = tmp_path_factory.mktemp("clients")
    config = directory / "config.yml"
    config.write_text("post_hooks: []\n")
    output = directory / CLIENT
    said = _run(
        *(sys.executable, "-m", "openapi_python_client", "generate", "--path", document, "--config", config),
        *("--output-path", output, "--meta", "none"),
        cwd=directory,
    )
    sys.path.insert(0, str(directory))
    yield types.SimpleNamespace(
        load=lambda name: importlib.import_module(f"{CLIENT}.{name}"), said=said, directory=output
    )
    sys.path.remove(str(directory))
    for name in [name for name in sys.modules if name.partition(".")[0] == CLIENT]:
        del sys.modules[name]


def _operations(document):
    paths = json.loads(document.read_bytes())["paths"]
    return [call for calls in paths.values() for call in calls.values()]


def _module(operation_id):
    """The module's name for an operation, as the generator writes it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in operation_id)


def test_no_call_is_dropped_and_each_has_a_model_of_its_answer(generated, document):
    # Lines of JSON and Arrow streams are for who writes them by hand; the call is there with its JSON.
    warnings = [line for line in generated.said.splitlines() if line.startswith("WARNING")]
    assert warnings == ["WARNING parsing POST /v1/messages within messages."] * 2
    for kind in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):
        assert f"Unsupported content type {kind}" in generated.said
    assert "Unable to process schema" not in generated.said
    operations = _operations(document)
    assert len(operations) > 50
    for operation in operations:
        [tag] = operation["tags"]
        name = f"api.{tag.replace('-', '_')}.{_module(operation['operationId'])}"
        module = generated.load(name)
        answers = typing.get_type_hints(module.asyncio, vars(generated.load("models")))["return"]
        kinds = {kind for kind in typing.get_args(answers) if kind is not type(None)}
        assert kinds - {generated.load("models").Problem}, name
        assert typing.Any not in kinds, name


@pytest.fixture
async def client(generated, service):
    """The generated client of the service; an answer that the document does not know raises."""
    base = str(service.url).rstrip("/")
    async with generated.load("client").Client(base_url=base, raise_on_unexpected_status=True) as client:
        yield client


async def test_a_generated_python_client_sends_gets_lists_and_recalls(generated, client):
    models, load = generated.load("models"), generated.load
    send = load("api.messages.send_messages").asyncio
    new, body = models.NewMessage, "close order 17"
    sent = await send(
        client=client, body=new(topic="orders", body=body, delay_ms=HOUR_MS, tags="paid", keys=["k"])
    )
    assert (sent.topic, sent.state) == ("orders", models.State.SCHEDULED)
    many = await send(client=client, body=[new(topic="orders", body=str(n)) for n in range(3)])
    assert [one.state for one in many] == [models.State.DELIVERED] * 3

    got = await load("api.messages.get_message").asyncio(sent.id, client=client)
    assert (got.body, got.tags, got.keys, got.due_ms) == (body, "paid", ["k"], sent.due_ms)
    listed = await load("api.messages.list_pending").asyncio(client=client, topic="orders")
    assert [message.id for message in listed.messages] == [sent.id]
    assert listed.cursor is None

    refused = await send(client=client, body=models.NewMessage(topic="no topic"))
    assert (refused.status, refused.code) == (400, models.ProblemCode.ILLEGAL_TOPIC)
    missing = await load("api.messages.get_message").asyncio("x", client=client)
    assert missing.code == models.ProblemCode.UNKNOWN_MESSAGE

    recalled = await load("api.messages.recall_message").asyncio(sent.id, client=client)
    assert recalled.state == models.State.RECALLED
    recall = load("api.messages.recall_messages").asyncio
    dry = await recall(client=client, body=models.NewRecall(topic="orders", dry_run=True))
    assert (dry.matched, dry.dry_run) == (0, True)
    outcomes = await recall(client=client, body=models.NewRecall(ids=[sent.id]))
    assert [(one.ok, one.code) for one in outcomes.results] == [(False, "already_recalled")]


async def test_a_generated_python_client_receives_acknowledges_and_reads(generated, client, service):
    models, load = generated.load("models"), generated.load
    await service.send([{"topic": "orders", "body": str(n)} for n in range(3)])
    backoff = models.Exponential(type_="exponential", initial_ms=10)
    config = models.GroupConfig(max_attempts=3, backoff=backoff)
    made = await load("api.groups.put_group").asyncio("orders", "workers", client=client, body=config)
    assert (made.config.max_attempts, made.lag) == (3, 3)
    receive = load("api.groups.receive").asyncio
    found = await receive("orders", "workers", client=client, body=models.Receive(max_=9, wait_ms=1))
    assert [held.body for held in found.messages] == ["0", "1", "2"]
    receipts = [held.receipt for held in found.messages]
    done = await load("api.groups.acknowledge").asyncio(
        "orders", "workers", client=client, body=models.Ack(receipts=receipts)
    )
    assert [result.ok for result in done.results] == [True] * 3
    groups = await load("api.groups.list_groups").asyncio(client=client)
    assert [(group.group, group.lag, group.in_flight) for group in groups.groups] == [("workers", 0, 0)]
    read = await load("api.topics.read_queue").asyncio("orders", 0, client=client, offset=1)
    assert [message.body for message in read.messages] == ["1", "2"]
    behind = await load("api.topics.read_queue").asyncio("orders", 0, client=client, offset=9)
    assert (behind.status, behind.max_offset) == (416, 3)


def test_every_module_of_the_generated_client_can_be_imported(generated):
    names = [path.relative_to(generated.directory) for path in generated.directory.rglob("*.py")]
    assert len(names) > 100
    for name in names:
        module = generated.load(".".join(name.with_suffix("").parts).removesuffix(".__init__"))
        assert inspect.ismodule(module)


# ---------------------------------------------------------------------- TypeScript


@pytest.fixture
def modules():
    """Where npm's packages lie; the test is skipped if they are not there."""
    if shutil.which("node") is None:
        pytest.skip(f"node is not installed; then: {NPM}")
    directory = Path(os.environ.get(NPM_VARIABLE, TYPESCRIPT)) / "node_modules"
    if not all((directory / name).is_dir() for name in ("openapi-typescript", "openapi-fetch", "typescript")):
        pytest.skip(f"packages are missing: {NPM}")
    return directory


async def test_a_generated_typescript_client_compiles_and_works(modules, document, service, tmp_path):
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    for name in ("client.ts", "tsconfig.json", "package.json"):
        shutil.copy(TYPESCRIPT / name, tmp_path / name)
    generator = modules / "openapi-typescript" / "bin" / "cli.js"
    _run("node", generator, document, "-o", tmp_path / "timerwheel.d.ts", cwd=tmp_path)
    _run("node", modules / "typescript" / "bin" / "tsc", "--project", tmp_path, cwd=tmp_path)
    url = str(service.url).rstrip("/")
    run = functools.partial(_run, "node", tmp_path / "client.js", cwd=tmp_path, TIMERWHEEL_URL=url)
    said = await asyncio.to_thread(run)
    assert said.splitlines()[-1] == "sent, got, listed, recalled, received, acknowledged"
    assert (await service.call("GET", "/v1/topics/orders/groups/workers")).content["in_flight"] == 0


def test_the_skip_of_the_typescript_client_says_what_to_install():
    for word in ("npm install", "openapi-typescript", "openapi-fetch", "typescript", NPM_VARIABLE):
        assert word in NPM
