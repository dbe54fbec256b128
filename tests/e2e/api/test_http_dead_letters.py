"""Dead letters over HTTP: listed, sent back, dropped."""

import pytest

GROUP = "/v1/topics/orders/groups/workers"
DEAD = f"{GROUP}/dead-letters"
DEAD_OF_NAME = "/v1/groups/workers/dead-letters"


async def _dead_letters(service, count, topic="orders", reason="no such customer", **fields):
    """Dead letters, by giving up messages at their only attempt."""
    group = f"/v1/topics/{topic}/groups/workers"
    await service.call("PUT", group, json={"max_attempts": 1})
    sent = (await service.send([{"topic": topic, "body": str(i), **fields} for i in range(count)])).content
    held = (await service.call("POST", f"{group}/receive", json={"max": count})).content["messages"]
    content = {"receipts": [one["receipt"] for one in held], "reason": reason}
    results = (await service.call("POST", f"{group}/nack", json=content)).content["results"]
    assert all(result["ok"] for result in results)
    return [receipt["id"] for receipt in sent]


async def _letters(service, query=""):
    answer = await service.call("GET", f"{DEAD}{query}")
    assert answer.status == 200
    return answer.content


async def test_a_dead_letter_says_where_it_is_from_and_why(service):
    [message_id] = await _dead_letters(service, 1)
    page = await _letters(service)
    [letter] = page["letters"]
    assert set(letter) == {
        *("offset", "reason", "attempts", "dead_ms", "origin_topic", "origin_id", "message"),
    }
    assert (letter["offset"], letter["reason"], letter["attempts"]) == (0, "no such customer", 1)
    assert (letter["origin_topic"], letter["origin_id"]) == ("orders", message_id)
    assert letter["message"]["body"] == "0"
    assert page["next_offset"] is None
    assert (await service.call("GET", GROUP)).content["dead_letters"] == 1


async def test_dead_letters_are_paged(service):
    await _dead_letters(service, 5)
    seen, query = [], "?limit=2"
    while query:
        page = await _letters(service, query)
        seen += [letter["message"]["body"] for letter in page["letters"]]
        query = page["next_offset"] and f"?limit=2&from={page['next_offset']}"
    assert seen == ["0", "1", "2", "3", "4"]


async def test_dead_letters_are_listed_by_reason_key_and_time(service):
    await _dead_letters(service, 2)
    [keyed] = await _dead_letters(service, 1, reason="No printer", keys=["4711", "4712"])
    letters = (await _letters(service))["letters"]
    assert [one["reason"] for one in letters] == ["no such customer"] * 2 + ["No printer"]
    last_ms = letters[-1]["dead_ms"]
    for query, count in (
        ("?reason=printer", 1),
        ("?reason=NO%20", 3),
        ("?reason=customer&key=4711", 0),
        ("?key=4711", 1),
        ("?key=47", 0),
        (f"?from_ms={last_ms + 1}", 0),
        (f"?until_ms={last_ms + 1}", 3),
        (f"?from_ms={letters[0]['dead_ms']}&until_ms={last_ms + 1}&limit=2", 2),
    ):
        found = await _letters(service, query)
        assert len(found["letters"]) == count, query
        assert found["letters"] == [one for one in letters if one in found["letters"]]
    found = (await service.call("GET", f"{DEAD_OF_NAME}?key=4712")).content["letters"]
    assert [one["origin_id"] for one in found] == [keyed]


@pytest.mark.parametrize("verb", ["redrive", "drop"])
async def test_all_that_meet_the_conditions_are_settled_and_no_others(service, verb):
    await _dead_letters(service, 3)
    await _dead_letters(service, 2, reason="no printer")
    settled = {"redrive": {"redriven": 2, "left": 0}, "drop": {"dropped": 2}}[verb]
    answer = await service.call("POST", f"{DEAD}/{verb}", json={"all": True, "reason": "printer"})
    assert (answer.status, answer.content) == (200, settled)
    letters = (await _letters(service))["letters"]
    assert [one["reason"] for one in letters] == ["no such customer"] * 3
    none = {"offsets": [letters[0]["offset"]], "key": "4711"}
    assert 0 in (await service.call("POST", f"{DEAD_OF_NAME}/{verb}", json=none)).content.values()
    assert len((await _letters(service))["letters"]) == 3


@pytest.mark.parametrize(
    ("query", "content", "codes"),
    [
        ("reason=", {"reason": ""}, ("illegal_filter", "illegal_filter")),
        ("key=", {"key": ""}, ("illegal_filter", "illegal_filter")),
        (f"reason={'x' * 501}", {"reason": "x" * 501}, ("illegal_filter", "illegal_filter")),
        ("from_ms=2&until_ms=1", {"from_ms": 2, "until_ms": 1}, ("invalid_parameter", "invalid_field")),
        ("from_ms=-1", {"from_ms": -1}, ("invalid_parameter", "invalid_field")),
        ("since=1", {"since": 1}, ("invalid_parameter", "invalid_field")),
    ],
)
async def test_a_wrong_condition_is_refused_and_nothing_is_settled(service, query, content, codes):
    await _dead_letters(service, 1)
    for path in (DEAD, DEAD_OF_NAME):
        answer = await service.call("GET", f"{path}?{query}")
        assert (answer.status, answer.code) == (400, codes[0])
        for verb in ("redrive", "drop"):
            chosen = {"all": True, "topics": ["orders"]} if path is DEAD_OF_NAME else {"all": True}
            answer = await service.call("POST", f"{path}/{verb}", json=chosen | content)
            assert (answer.status, answer.code) == (400, codes[1])
    assert len((await _letters(service))["letters"]) == 1


async def test_a_group_without_dead_letters_has_none(service):
    await service.call("PUT", GROUP, json={})
    assert await _letters(service) == {"letters": [], "next_offset": None, "cursor": None}
    assert (await service.call("POST", f"{DEAD}/redrive", json={"all": True})).content == {
        "redriven": 0,
        "left": 0,
    }
    assert (await service.call("POST", f"{DEAD}/drop", json={"offsets": [0]})).content == {"dropped": 0}


async def test_redriven_letters_are_messages_of_their_group_again(service):
    await _dead_letters(service, 3)
    answer = await service.call("POST", f"{DEAD}/redrive", json={"offsets": [1, 7]})
    assert (answer.status, answer.content) == (200, {"redriven": 1, "left": 0})
    answer = await service.call("POST", f"{GROUP}/receive", json={"max": 9, "wait_ms": 20_000})
    [held] = answer.content["messages"]
    assert (held["body"], held["attempt"]) == ("1", 1)
    assert [letter["offset"] for letter in (await _letters(service))["letters"]] == [0, 2]
    answer = await service.call("POST", f"{DEAD}/redrive", json={"all": True})
    assert answer.content == {"redriven": 2, "left": 0}
    assert (await _letters(service))["letters"] == []


async def test_letters_of_a_deleted_group_stay(service):
    await _dead_letters(service, 2)
    await service.call("DELETE", GROUP)
    answer = await service.call("POST", f"{DEAD}/redrive", json={"all": True})
    assert answer.content == {"redriven": 0, "left": 2}
    assert len((await _letters(service))["letters"]) == 2


async def test_a_group_that_no_topic_has_is_unknown_once_it_has_no_dead_letters(service):
    calls = [
        ("GET", DEAD, None),
        ("POST", f"{DEAD}/redrive", {"all": True}),
        ("POST", f"{DEAD}/drop", {"offsets": [0]}),
    ]
    for method, path, content in calls:
        answer = await service.call(method, path, json=content)
        assert (answer.status, answer.code) == (404, "unknown_group")
    await _dead_letters(service, 1)
    await service.call("DELETE", GROUP)
    assert await _letters(service, "?from=1") == {"letters": [], "next_offset": None, "cursor": None}
    assert (await service.call("POST", f"{DEAD}/drop", json={"all": True})).content == {"dropped": 1}
    for method, path, content in calls:
        answer = await service.call(method, path, json=content)
        assert (answer.status, answer.code) == (404, "unknown_group")


async def test_dropped_letters_are_forgotten(service):
    await _dead_letters(service, 3)
    assert (await service.call("POST", f"{DEAD}/drop", json={"offsets": [0]})).content == {"dropped": 1}
    assert (await service.call("POST", f"{DEAD}/drop", json={"all": True})).content == {"dropped": 2}
    assert (await _letters(service))["letters"] == []


async def test_letters_are_named_by_topic_and_group_another_topics_group_of_the_name_keeps_its_own(service):
    for topic in ("orders", "mail"):
        await _dead_letters(service, 2, topic)
    mail = "/v1/topics/mail/groups/workers"
    for path in (GROUP, mail):
        assert (await service.call("GET", path)).content["dead_letters"] == 2
        page = (await service.call("GET", f"{path}/dead-letters")).content
        assert {letter["origin_topic"] for letter in page["letters"]} == {path.split("/")[3]}
    # Offsets are those of the name: one that is of the other topic counts for nothing.
    foreign = page["letters"][0]["offset"]
    assert (await service.call("POST", f"{DEAD}/drop", json={"offsets": [foreign]})).content == {"dropped": 0}
    assert (await service.call("POST", f"{DEAD}/drop", json={"all": True})).content == {"dropped": 2}
    assert (await service.call("GET", f"{mail}/dead-letters")).content == page
    assert [(await service.call("GET", path)).content["dead_letters"] for path in (GROUP, mail)] == [0, 2]
    answer = await service.call("POST", f"{mail}/dead-letters/redrive", json={"all": True})
    assert answer.content == {"redriven": 2, "left": 0}


@pytest.mark.parametrize("verb", ["redrive", "drop"])
async def test_by_the_name_alone_all_letters_are_meant_only_with_their_topics(service, verb):
    for topic in ("orders", "mail", "bills"):
        await _dead_letters(service, 1, topic)
    path = f"{DEAD_OF_NAME}/{verb}"
    refused = await service.call("POST", path, json={"all": True})
    assert (refused.status, refused.code) == (400, "invalid_field")
    assert "'bills' (1), 'mail' (1), 'orders' (1)" in refused.content["detail"]
    for wrong in ({"all": True, "topics": []}, {"topics": ["orders"]}):
        answer = await service.call("POST", path, json=wrong)
        assert (answer.status, answer.code) == (400, "invalid_field")
    letters = (await service.call("GET", DEAD_OF_NAME)).content["letters"]
    assert [letter["origin_topic"] for letter in letters] == ["orders", "mail", "bills"]
    done = (await service.call("POST", path, json={"all": True, "topics": ["orders", "bills"]})).content
    assert done[{"redrive": "redriven", "drop": "dropped"}[verb]] == 2
    [left] = (await service.call("GET", DEAD_OF_NAME)).content["letters"]
    assert left["origin_topic"] == "mail"
    done = (await service.call("POST", path, json={"offsets": [left["offset"]]})).content
    assert done[{"redrive": "redriven", "drop": "dropped"}[verb]] == 1


@pytest.mark.parametrize("verb", ["redrive", "drop"])
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"all":false}',
        b'{"all":true,"offsets":[0]}',
        b'{"offsets":[-1]}',
        b'{"offsets":"all"}',
        b'{"offsets":[' + b"1," * 1000 + b"1]}",
    ],
)
async def test_a_wrong_choice_is_refused_and_touches_none(service, verb, body):
    await _dead_letters(service, 2)
    answer = await service.call("POST", f"{DEAD}/{verb}", data=body)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert len((await _letters(service))["letters"]) == 2


async def test_names_and_pages_are_checked(service):
    for path, code in (
        ("/v1/groups/a%20b/dead-letters", "illegal_group"),
        ("/v1/topics/orders/groups/a%20b/dead-letters", "illegal_group"),
        (f"{DEAD}?from=-1", "invalid_parameter"),
        (f"{DEAD}?from=x", "invalid_parameter"),
        (f"{DEAD}?limit=0", "invalid_parameter"),
        (f"{DEAD}?limit=1001", "invalid_parameter"),
    ):
        answer = await service.call("GET", path)
        assert (answer.status, answer.code) == (400, code)
    answer = await service.call("POST", "/v1/groups/a%20b/dead-letters/drop", json={"all": True})
    assert (answer.status, answer.code) == (400, "illegal_group")
