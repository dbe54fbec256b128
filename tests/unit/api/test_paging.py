"""Every call that answers with a list goes through it by `limit`, `cursor`, and a `cursor` in the answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.route_table import route_table
from timerwheel.api.http.openapi import document
from timerwheel.wire.paging import LIMIT_MAX

# Answers that are one thing with lists in it, or a read that is not a listing, and what bounds them.
BOUNDED = {
    "/v1/messages/{id}/history": "what happened to one message; at most an entry for each group and attempt",
    "/v1/messages/{id}/story": "the older name of the history",
    "/v1/messages/{id}": "the keys of one message, which fit into its properties",
    "/v1/topics/{topic}/keys/{key}": "the same",
    "/v1/topics/{topic}": "the queues of one topic: at most 64",
    "/v1/topics/{topic}/groups/{group}": "the same, with the positions of one group",
    "/v1/topics/{topic}/queues/{queue}/messages": "a read by offset, as of a log, with `next_offset`",
    "/v1/schedules/{name}": "the keys of the messages of one schedule",
    "/v1/subscriptions/{id}": "the names of the headers of one subscription: at most 32",
    "/v1/tasks/{id}": "the names of the headers of one task: at most 32",
    "/v1/task-queues/{queue}": "the hosts of one queue that fail: at most 100",
    "/v1/wheel": "the four levels of the wheel, and what is damaged",
    "/v1/token": "the scopes and topics of one token",
    "/readyz": "the shards: as many as the service was started with",
    "/v1/cluster": "the nodes and shards of one service",
    "/v1/live/history": "the points of the last 15 minutes or 24 hours",
}


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _is_array(schema: dict[str, Any], document: dict[str, Any]) -> bool:
    found = _resolved(schema, document)
    return found.get("type") == "array" or any(_is_array(one, document) for one in found.get("anyOf", ()))


def _answers(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The path, the operation and the properties of each JSON answer to a GET."""
    for path, item in document["paths"].items():
        for status, answer in item.get("get", {}).get("responses", {}).items():
            content = answer.get("content", {}).get("application/json")
            if status.startswith("2") and content is not None:
                schema = _resolved(content["schema"], document)
                assert schema.get("type") != "array", f"{path}: a bare array has no place for a cursor"
                yield path, item["get"], schema.get("properties", {})


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    directory: Path = tmp_path_factory.mktemp("data")
    found = document(route_table(directory))
    return {
        path: (operation, properties)
        for path, operation, properties in _answers(found)
        if any(_is_array(one, found) for one in properties.values())
    }


def test_every_list_has_pages_or_a_bound_that_is_known(lists):
    paged = {path for path, (_, properties) in lists.items() if "cursor" in properties}
    assert lists.keys() - paged == BOUNDED.keys()
    assert len(paged) > 10


def test_every_list_with_pages_takes_the_same_two_parameters(lists):
    for path in lists.keys() - BOUNDED.keys():
        parameters = {one["name"]: one["schema"] for one in lists[path][0]["parameters"]}
        assert "cursor" in parameters, path
        assert (parameters["limit"]["minimum"], parameters["limit"]["maximum"]) == (1, LIMIT_MAX), path
