"""The running API held against its own document by a property-based tester."""

import asyncio
import os
import sys
from pathlib import Path

from yarl import URL

# The tester knows no lines of JSON; one object is a line. Long waits and streams are tested elsewhere.
HOOKS = """
import json, schemathesis

@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()

@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("wait_ms"), int) and body["wait_ms"] in range(60_001):
        body["wait_ms"] %= 2
    return body
"""
CONFIG = """
hooks = "lines"
[parameters]
"query.wait_ms" = 1
[[operations]]
include-operation-id = "stream"
enabled = false
[[operations]]
include-operation-id = "live"
enabled = false
"""
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,"
    "unsupported_method,allow_header_conformance,negative_data_rejection"
)


async def assert_conforms(url: URL, directory: Path, *more: str) -> None:
    """No call answers otherwise than the document says; `more` are flags of the tester's `run`.

    The tester has one worker: Python 3.11 counts the depth of `ast` for all threads together, so two of them
    fail at times with a SystemError.
    """
    (directory / "lines.py").write_text(HOOKS)
    (directory / "schemathesis.toml").write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "--no-color"),
        *("run", f"{url}openapi.json", "--seed", "2", "--checks", CHECKS, "--workers", "1"),
        *("--request-timeout", "10", "--generation-database", "none", *more),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
