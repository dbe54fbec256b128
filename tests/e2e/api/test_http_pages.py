"""Every list goes page by page: `limit`, `cursor`, and a `cursor` in the answer that is null at the end."""

import pytest

HOUR = {"delay": "1h"}


@pytest.fixture
async def filled(service):
    """Five of everything that is listed."""
    for number in range(5):
        name = f"n{number}"
        await service.send([{"topic": name, "keys": "k", "delay_ms": 3_600_000 * (number % 2)}])
        await service.send([{"topic": name, "delay_ms": 86_400_000 * (number + 2)}])
        for path, body in (
            (f"/v1/topics/{name}/groups/g", {"max_attempts": 1}),
            (f"/v1/topics/n0/groups/{name}", {}),
            (f"/v1/schedules/{name}", {"topic": name, "every": "1h"}),
            (f"/v1/task-queues/{name}", {}),
        ):
            answer = await service.call("PUT", path, json=body)
            assert answer.status in (200, 201), answer.content
        for path, body in (
            ("/v1/subscriptions", {"id": name, "topic": name, "url": "https://example.com/"}),
            ("/v1/transactions", {"topic": "half"}),
            ("/v1/tasks", {"url": "https://example.com/", **HOUR}),
        ):
            answer = await service.call("POST", path, json=body)
            assert answer.status == 201, answer.content
    return service


LISTS = [
    ("/v1/topics?", "topics", ("topic",)),
    ("/v1/groups?", "groups", ("topic", "group")),
    ("/v1/topics/n0/groups?", "groups", ("topic", "group")),
    ("/v1/schedules?", "schedules", ("name",)),
    ("/v1/subscriptions?", "subscriptions", ("id",)),
    ("/v1/task-queues?", "queues", ("queue",)),
    ("/v1/tasks?", "tasks", ("id",)),
    ("/v1/transactions?", "transactions", ("id",)),
    ("/v1/messages?", "messages", ("id",)),
    ("/v1/messages?key=k&", "messages", ("id",)),
    ("/v1/levels?", "levels", ("level",)),
    ("/v1/wheel/slots?", "slots", ("level", "start_ms")),
]
OTHERS = ("/v1/schedules/n0/runs?", "/v1/subscriptions/n0/attempts?")


async def pages(service, path, field):
    """The items of each page, of two."""
    found, cursor = [], None
    while True:
        asked = f"{path}limit=2" + (f"&cursor={cursor}" if cursor else "")
        answer = await service.call("GET", asked)
        assert answer.status == 200, answer.content
        found.append(answer.content[field])
        cursor = answer.content["cursor"]
        if cursor is None:
            return found


@pytest.mark.parametrize(("path", "field", "names"), LISTS)
async def test_pages_of_two_have_everything_once_in_the_order_of_the_whole(filled, path, field, names):
    whole = (await filled.call("GET", path.rstrip("?&"))).content
    assert whole.get("cursor") is None
    found = await pages(filled, path, field)
    assert max(map(len, found)) == 2

    def name_of(one):
        return tuple(one[name] for name in names)

    assert [name_of(one) for page in found for one in page] == [name_of(one) for one in whole[field]]
    assert len(whole[field]) >= 5


@pytest.mark.parametrize("path", [*(path for path, _, _ in LISTS), *OTHERS])
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "invalid_parameter"),
        ("limit=1e2", "invalid_parameter"),
        ("limit=1001", "invalid_parameter"),
        ("cursor=%21", "illegal_cursor"),
    ],
)
async def test_limits_and_cursors_that_cannot_be_are_refused_by_every_list(service, path, query, code):
    await service.send([{"topic": "n0"}])
    await service.call("PUT", "/v1/schedules/n0", json={"topic": "n0", "every": "1h"})
    hook = {"id": "n0", "topic": "n0", "url": "https://example.com/"}
    await service.call("POST", "/v1/subscriptions", json=hook)
    answer = await service.call("GET", path + query)
    assert (answer.status, answer.code) == (400, code)


async def test_dead_letters_are_paged_by_cursor_or_by_offset(service):
    await service.call("PUT", "/v1/topics/t/groups/g", json={"max_attempts": 1})
    for _ in range(5):
        await service.send([{"topic": "t"}])
        taken = await service.call("POST", "/v1/topics/t/groups/g/receive", json={})
        receipts = [one["receipt"] for one in taken.content["messages"]]
        await service.call("POST", "/v1/topics/t/groups/g/nack", json={"receipts": receipts})
    for path in ("/v1/groups/g/dead-letters?", "/v1/topics/t/groups/g/dead-letters?"):
        found = await pages(service, path, "letters")
        assert [one["offset"] for page in found for one in page] == [0, 1, 2, 3, 4]
        page = (await service.call("GET", f"{path}limit=2&from=1")).content
        assert (page["next_offset"], page["cursor"]) == (3, "3")
        assert (await service.call("GET", f"{path}cursor=x")).code == "illegal_cursor"


async def test_the_runs_of_a_schedule_go_on_behind_the_cursor_until_it_ends(service):
    schedule = {"topic": "t", "every": "1h", "end_ms": 10**13}
    made = await service.call("PUT", "/v1/schedules/s", json=schedule)
    end_ms = made.content["next_run_ms"] + 5 * 3_600_000
    await service.call("PUT", "/v1/schedules/s", json={**schedule, "end_ms": end_ms})
    whole = (await service.call("GET", "/v1/schedules/s/runs")).content
    assert (len(whole["runs"]), "cursor" in whole) == (5, False)
    found = await pages(service, "/v1/schedules/s/runs?", "runs")
    assert [one for page in found for one in page] == whole["runs"]
    assert (await service.call("GET", "/v1/schedules/s/runs?count=2")).content == {"runs": whole["runs"][:2]}
    both = await service.call("GET", "/v1/schedules/s/runs?count=2&limit=2")
    assert (both.status, both.code) == (400, "invalid_parameter")
