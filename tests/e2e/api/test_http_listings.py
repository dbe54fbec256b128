"""Messages listed by state, tag, key and time over HTTP: their pages, who sees what, and wrong input."""

import pytest

DAY_MS = 86_400_000


async def pages(service, query, **headers):
    """The ids on each page of a listing."""
    found, cursor = [], None
    while True:
        path = f"/v1/messages?{query}" + (f"&cursor={cursor}" if cursor else "")
        answer = await service.call("GET", path, **headers)
        assert answer.status == 200, answer.content
        found.append([message["id"] for message in answer.content["messages"]])
        cursor = answer.content["cursor"]
        if cursor is None:
            return found


async def ids(service, query):
    return [one for page in await pages(service, query) for one in page]


@pytest.fixture
async def orders(service):
    """A scheduled, a recalled and a delivered order with one key, the last with another tag."""
    new = [
        {"topic": "orders", "keys": "4711 a", "tags": "vip", "delay": "1h"},
        {"topic": "orders", "keys": ["4711"], "tags": "vip", "delay": "2h"},
        {"topic": "orders", "dedup_key": "4711", "tags": "plain"},
    ]
    sent = [(await service.call("POST", "/v1/messages", json=one)).content for one in new]
    await service.call("DELETE", f"/v1/messages/{sent[1]['id']}")
    return [one["id"] for one in sent]


async def test_conditions_choose_messages_in_every_state(service, orders):
    scheduled, recalled, delivered = orders
    assert await ids(service, "key=4711") == orders
    assert await ids(service, "key=4711&order=newest") == orders[::-1]
    assert await ids(service, "key=4711&state=recalled,delivered&topic=orders") == [recalled, delivered]
    assert await ids(service, "topic=orders") == [scheduled]
    assert await ids(service, "topic=orders&state=recalled&tag=vip") == [recalled]
    assert await ids(service, "topic=orders&state=scheduled,delivered,recalled") == [
        scheduled,
        delivered,
        recalled,
    ]
    assert await ids(service, "topic=orders&state=delivered&tag=vip%20%7C%7C%20plain") == [delivered]
    view = (await service.call("GET", f"/v1/messages/{recalled}")).content
    at_ms = view["recalled_ms"]
    assert await ids(service, f"topic=orders&state=recalled&from_ms={at_ms}&until_ms={at_ms + 1}") == [
        recalled
    ]
    assert await ids(service, f"topic=orders&state=recalled&from_ms={at_ms + 1}") == []
    assert await ids(service, f"key=4711&due_from_ms={view['due_ms']}") == [recalled]
    [shown] = (await service.call("GET", "/v1/messages?topic=orders&state=recalled")).content["messages"]
    assert shown == view


async def test_pages_go_on_by_their_cursor_until_it_is_null(service, orders):
    assert await pages(service, "key=4711&limit=2") == [orders[:2], orders[2:]]
    scheduled, recalled, delivered = orders
    found = await pages(service, "topic=orders&state=scheduled,delivered,recalled&limit=1")
    assert [one for page in found for one in page] == [scheduled, delivered, recalled]
    assert max(map(len, found)) == 1


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("state=recalled", "illegal_filter"),
        ("key=", "illegal_filter"),
        ("tag=&topic=a", "illegal_filter"),
        ("tag=a%20b&topic=a", "illegal_filter"),
        ("topic=a&order=newest", "illegal_filter"),
        ("topic=", "illegal_topic"),
        ("topic=a&state=", "invalid_parameter"),
        ("topic=a&state=expired", "invalid_parameter"),
        ("topic=a&state=recalled,", "invalid_parameter"),
        ("topic=a&order=best", "invalid_parameter"),
        ("topic=a&limit=0", "invalid_parameter"),
        ("topic=a&limit=1001", "invalid_parameter"),
        ("topic=a&from_ms=2&until_ms=1", "invalid_parameter"),
        ("topic=a&from_ms=-1", "invalid_parameter"),
        ("topic=a&state=recalled&cursor=k1", "illegal_cursor"),
        ("key=a&cursor=e1", "illegal_cursor"),
        ("key=a&cursor=", "illegal_cursor"),
    ],
)
async def test_what_cannot_be_listed_is_refused_in_words(service, query, code):
    answer = await service.call("GET", f"/v1/messages?{query}")
    assert (answer.status, answer.code) == (400, code)
    assert answer.content["detail"]
