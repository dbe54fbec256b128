"""Transactions over HTTP: begin, list, commit, roll back; what is refused, and to whom."""

import pytest

HALF = {"topic": "orders", "body": "x", "delay_ms": 3_600_000}


async def begin(service, **fields):
    answer = await service.call("POST", "/v1/transactions", json={**HALF, **fields})
    assert answer.status == 201, answer.content
    return answer.content["id"]


async def test_a_half_message_is_delivered_once_it_is_committed(service):
    half = await begin(service, delay_ms=0, tags="t")
    [one] = (await service.call("GET", "/v1/transactions")).content["transactions"]
    assert (one["id"], one["topic"], one["checks"]) == (half, "orders", 0)
    assert one["next_check_ms"] > one["began_ms"]
    assert (await service.read("orders", "offset=0")).content["messages"] == []
    answer = await service.call("POST", f"/v1/transactions/{half}/commit")
    assert (answer.status, answer.content["id"], answer.content["state"]) == (200, half, "delivered")
    [message] = (await service.read("orders")).content["messages"]
    assert (message["id"], message["tags"], message["properties"]["TAGS"]) == (half, "t", "t")
    assert "TRAN_MSG" not in message["properties"]
    assert (await service.call("GET", "/v1/transactions")).content == {"transactions": [], "cursor": None}


async def test_open_transactions_are_listed_in_pages_of_a_topic_or_of_all(service):
    begun = [await begin(service, topic=f"t{number % 2}") for number in range(5)]

    async def listed(query):
        found, cursor = [], ""
        while cursor is not None:
            path = f"/v1/transactions?limit=2{query}" + (f"&cursor={cursor}" if cursor else "")
            page = (await service.call("GET", path)).content
            found.append([one["id"] for one in page["transactions"]])
            cursor = page["cursor"]
        return found

    assert await listed("") == [begun[:2], begun[2:4], begun[4:]]
    assert await listed("&topic=t1") == [begun[1::2], []]
    assert await listed("&topic=t9") == [[]]
    for query, code in (
        ("cursor=x", "illegal_cursor"),
        ("topic=a/b", "illegal_topic"),
        ("limit=0", "invalid_parameter"),
    ):
        answer = await service.call("GET", f"/v1/transactions?{query}")
        assert (answer.status, answer.code) == (400, code)


async def test_a_trace_context_travels_with_a_half_message(service):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await service.call("POST", "/v1/transactions", json=HALF, headers={"traceparent": parent})
    found = await service.call("GET", f"/v1/messages/{answer.content['id']}")
    assert found.content["properties"]["traceparent"] == parent


async def test_the_end_of_a_transaction_is_final_and_told(service):
    committed, rolled_back = await begin(service), await begin(service)
    assert (await service.call("POST", f"/v1/transactions/{committed}/commit")).content[
        "state"
    ] == "scheduled"
    answer = await service.call("POST", f"/v1/transactions/{rolled_back}/rollback")
    assert (answer.status, answer.content["state"]) == (200, "recalled")
    for message_id, code in ((committed, "no_open_transaction"), (rolled_back, "already_recalled")):
        for end in ("commit", "rollback"):
            answer = await service.call("POST", f"/v1/transactions/{message_id}/{end}")
            assert (answer.status, answer.code) == (409, code)
    answer = await service.call("POST", f"/v1/transactions/{'0' * 24}/commit")
    assert (answer.status, answer.code) == (404, "unknown_message")


async def test_an_open_transaction_is_neither_recalled_nor_rescheduled_like_a_message(service):
    half = await begin(service)
    for answer in (
        await service.call("DELETE", f"/v1/messages/{half}"),
        await service.call("PATCH", f"/v1/messages/{half}", json={"delay_ms": 5}),
    ):
        assert (answer.status, answer.code) == (409, "open_transaction")
    assert (await service.call("GET", f"/v1/messages/{half}")).content["properties"]["TRAN_MSG"] == "true"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "no good"}, "illegal_topic"),
        ({"queue": 7}, "illegal_queue"),
        ({"dedup_key": "k"}, "transactional"),
        ({"delay": "1h"}, "conflicting_delay"),
        ({"other": 1}, "invalid_field"),
    ],
)
async def test_what_a_send_would_refuse_is_not_begun(service, fields, code):
    answer = await service.call("POST", "/v1/transactions", json={**HALF, **fields})
    assert (answer.status, answer.code) == (400, code)
    assert (await service.call("GET", "/v1/transactions")).content == {"transactions": [], "cursor": None}
