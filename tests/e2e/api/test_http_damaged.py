"""A scheduled message whose record cannot be read: what clients are told, and how an operator ends it."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.cold import make_cold

PATIENCE_S = 60
FAR_MS = 3_600_000
BODY = "a body that is found by its bytes"


async def damaged(service, delay_ms):
    """Send a message, and change a byte of its record on the disk; returns its id."""
    sent = (await service.send({"topic": "a", "body": BODY, "delay_ms": delay_ms})).content
    log = service.engine.core.log
    path = Path(log.path(log.base_of(int(sent["id"][:16], 16))))
    with path.open("r+b") as file:
        at = path.read_bytes().index(BODY.encode())
        file.seek(at)
        file.write(BODY[:1].upper().encode())
    make_cold(service.engine)
    return sent["id"]


async def test_a_message_that_cannot_be_read_is_recalled_only_if_that_is_asked_for(service):
    message_id = await damaged(service, FAR_MS)
    path = f"/v1/messages/{message_id}"
    assert (await service.call("DELETE", path)).content["code"] == "corruption"
    assert (await service.call("DELETE", f"{path}?damaged=false")).content["code"] == "corruption"
    conditional = await service.call("DELETE", f"{path}?damaged=true", headers={"If-Match": "*"})
    assert conditional.content["code"] == "corruption", "what it is cannot be known"
    ended = await service.call("DELETE", f"{path}?damaged=true")
    assert (ended.status, ended.content["id"], ended.content["state"]) == (200, message_id, "recalled")
    assert ended.content["topic"] == "a"
    assert ended.content["problem"]
    assert (await service.call("GET", "/v1/wheel")).content["pending"] == 0
    again = await service.call("DELETE", f"{path}?damaged=true")
    assert (again.status, again.content["code"]) == (409, "already_recalled")


async def test_a_message_that_can_be_read_is_recalled_as_always(service):
    sent = (await service.send({"topic": "a", "body": "x", "delay_ms": FAR_MS})).content
    ended = await service.call("DELETE", f"/v1/messages/{sent['id']}?damaged=true")
    assert (ended.status, ended.content["body"]) == (200, "x")
    unknown = await service.call("DELETE", "/v1/messages/00000000000000001f2e3d4c?damaged=true")
    assert (unknown.status, unknown.content["code"]) == (404, "unknown_message")


@pytest.mark.parametrize("purpose", ["", "?for=send"])
async def test_the_readiness_says_what_to_do_about_due_messages_that_cannot_be_read(service, purpose):
    assert "set_aside" not in (await service.call("GET", f"/readyz{purpose}")).content
    message_id = await damaged(service, 1_000)
    async with asyncio.timeout(PATIENCE_S):
        while "set_aside" not in (ready := (await service.call("GET", f"/readyz{purpose}")).content):
            await asyncio.sleep(0.02)
    assert "`timerwheel recall ID --damaged`" in ready["set_aside"]
    assert (await service.call("DELETE", f"/v1/messages/{message_id}?damaged=true")).status == 200
    assert "set_aside" not in (await service.call("GET", f"/readyz{purpose}")).content
