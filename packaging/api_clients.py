"""Writes the generated parts of `clients/typescript` and `clients/go` from the service's OpenAPI document.

    python packaging/api_clients.py      needs npm and Go, and their registries

Each generated file names the digest of the document that it was made of, so a test needs neither npm nor Go.
What is written by hand lies beside them: how a client is made, what an error is, how a worker runs.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TYPESCRIPT = ROOT / "clients" / "typescript" / "src" / "schema.ts"
GO = ROOT / "clients" / "go" / "api.gen.go"
OPENAPI_TYPESCRIPT = "openapi-typescript@7.13.0"
OAPI_CODEGEN = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
JSON_TYPE = "application/json"
GO_CONFIG = """
package: timerwheel
generate: {models: true, client: true}
output-options: {skip-prune: false}
"""


def served_document() -> dict[str, Any]:
    """The document, from a service that is started for it."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "timerwheel", "serve", "--port", "0", "--data", data, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as service:
            try:
                assert service.stdout is not None
                url = json.loads(service.stdout.readline())["url"]
                with urllib.request.urlopen(f"{url}/openapi.json") as answer:  # noqa: S310 - of our own service
                    return json.load(answer)
            finally:
                service.terminate()


def digest_of(document: dict[str, Any]) -> str:
    """The digest that generated files name."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def digest_in(path: Path) -> str | None:
    """The digest that a generated file names."""
    found = re.search(r"document ([0-9a-f]{32})", path.read_text()[:1000]) if path.exists() else None
    return None if found is None else found[1]


def in_json(document: dict[str, Any]) -> dict[str, Any]:
    """The document with JSON alone where a call takes or answers other content too, such as Arrow."""
    changed = json.loads(json.dumps(document))
    for call in _calls(changed):
        for content in [call.get("requestBody", {}), *call["responses"].values()]:
            kinds = content.get("content", {})
            for kind in [kind for kind in kinds if JSON_TYPE in kinds and kind != JSON_TYPE]:
                del kinds[kind]
    return changed


def for_go(document: dict[str, Any]) -> dict[str, Any]:
    """The document as oapi-codegen makes a small client of it.

    Whole numbers have 64 bits, all problems of a call are one answer, and a body is one object: of a body
    that is one of several, the generator makes a type that is encoded as nothing. Arrays go through the
    calls `...WithBody`.
    """
    changed = in_json(document)
    del changed["webhooks"]
    _widen(changed)
    for call in _calls(changed):
        answers = call["responses"]
        problems = [status for status in answers if status[0] in "45"]
        if problems:
            answers["default"] = answers[problems[-1]]
            for status in problems:
                del answers[status]
        wanted = call.get("requestBody", {}).get("content", {}).get(JSON_TYPE, {})
        for one in wanted.get("schema", {}).get("anyOf", ()):
            if "$ref" in one:
                wanted["schema"] = one
    return changed


def _calls(document: dict[str, Any]) -> list[dict[str, Any]]:
    methods = (call for calls in document["paths"].values() for call in calls.values())
    return [call for call in methods if isinstance(call, dict) and "responses" in call]


def _widen(value: object) -> None:
    if isinstance(value, dict):
        if value.get("type") == "integer" and "enum" not in value:
            value.setdefault("format", "int64")
        for one in value.values():
            _widen(one)
    elif isinstance(value, list):
        for one in value:
            _widen(one)


def write_typescript(document: dict[str, Any], directory: Path) -> None:
    """Write the types of all calls."""
    (directory / "openapi.json").write_text(json.dumps(in_json(document)))
    made = directory / "schema.ts"
    _run("npx", "--yes", OPENAPI_TYPESCRIPT, "openapi.json", "--output", str(made), cwd=directory)
    TYPESCRIPT.parent.mkdir(parents=True, exist_ok=True)
    TYPESCRIPT.write_text(f"{_header(document, OPENAPI_TYPESCRIPT)}{made.read_text()}")


def write_go(document: dict[str, Any], directory: Path) -> None:
    """Write the types and the calls."""
    (directory / "openapi.json").write_text(json.dumps(for_go(document)))
    (directory / "config.yaml").write_text(GO_CONFIG)
    command = ("go", "run", OAPI_CODEGEN, "-config", "config.yaml", "-o", "api.gen.go", "openapi.json")
    _run(*command, cwd=directory)
    text = (directory / "api.gen.go").read_text()
    _, _, rest = text.partition("package timerwheel")
    GO.write_text(f"{_header(document, OAPI_CODEGEN)}\npackage timerwheel{rest}")


def _header(document: dict[str, Any], generator: str) -> str:
    return (
        f"// Code generated by packaging/api_clients.py with {generator}; DO NOT EDIT.\n"
        f"// Made of the OpenAPI document {digest_of(document)}.\n"
    )


def _run(*command: str, cwd: Path) -> None:
    environment = os.environ | {"GOFLAGS": "-mod=mod"}
    subprocess.run(command, cwd=cwd, env=environment, check=True)


def main() -> None:
    """Write both."""
    document = served_document()
    with tempfile.TemporaryDirectory() as directory:
        write_typescript(document, Path(directory))
        write_go(document, Path(directory))


if __name__ == "__main__":
    main()
