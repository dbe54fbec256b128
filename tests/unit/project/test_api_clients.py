"""The generated parts of the clients for TypeScript and Go are of the service's document."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import orjson
import pytest

from tests.harness.processes import ROOT
from tests.harness.route_table import route_table
from timerwheel.api.http import openapi


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`packaging/api_clients.py`, which is not a module of a package."""
    path = ROOT / "packaging" / "api_clients.py"
    spec = importlib.util.spec_from_file_location("api_clients", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "api_clients", module)
    spec.loader.exec_module(module)
    return module


def test_the_clients_are_made_of_the_document_of_this_service(program: ModuleType, tmp_path: Path) -> None:
    document = json.loads(orjson.dumps(openapi.document(route_table(tmp_path))))
    wanted = program.digest_of(document)
    for path in (program.TYPESCRIPT, program.GO):
        assert program.digest_in(path) == wanted, "run python packaging/api_clients.py"


def test_go_gets_one_answer_for_all_problems_and_one_object_for_a_body(
    program: ModuleType, tmp_path: Path
) -> None:
    document = json.loads(orjson.dumps(openapi.document(route_table(tmp_path))))
    send = program.for_go(document)["paths"]["/v1/messages"]["post"]
    assert send["responses"].keys() == {"200", "201", "207", "default"}
    assert send["requestBody"]["content"].keys() == {"application/json"}
    assert send["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/NewMessage"
    }
    assert "4" in "".join(document["paths"]["/v1/messages"]["post"]["responses"])
