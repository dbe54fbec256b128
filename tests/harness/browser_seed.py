"""What the console has to show, made over HTTP: messages, groups, dead letters, subscriptions, schedules."""

from typing import Any
from urllib.request import Request, urlopen

import orjson

HOUR_MS = 3_600_000
PATIENCE_S = 60
# From seconds to years, on every ring and beyond.
DELAYS_MS = (
    *(second * 1_000 for second in range(30, 170, 7)),
    *(minute * 60_000 for minute in range(5, 170, 4)),
    *(hour * HOUR_MS for hour in range(3, 70, 2)),
    *(day * 24 * HOUR_MS for day in (3, 4, 5, 9, 20, 40, 80, 200, 800, 3000)),
)


def ask(url: str, method: str, path: str, content: Any = None) -> Any:
    """One call on the service at `url`; the answer's JSON. HTTPError unless it succeeds."""
    body = None if content is None else orjson.dumps(content)
    request = Request(url + path, body, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=PATIENCE_S) as answer:
        return orjson.loads(answer.read())


def send(url: str, topic: str, *, body: str = "x", **fields: Any) -> dict[str, Any]:
    """Send one message; what the service answered."""
    return ask(url, "POST", "/v1/messages", {"topic": topic, "body": body, **fields})


def fill(url: str) -> None:
    """Something of everything that the page shows."""
    waiting = [
        {"topic": "reminders", "body": f"number {number}", "delay_ms": delay_ms, "tags": "dunning"}
        for number, delay_ms in enumerate(DELAYS_MS)
    ]
    ask(url, "POST", "/v1/messages", waiting)
    ask(url, "POST", "/v1/messages", [{"topic": "orders", "body": f"order {n}"} for n in range(12)])
    fail(url, "orders", "closers", count=3)
    subscription = {"topic": "orders", "url": "https://hooks.example/orders", "id": "hook"}
    ask(url, "POST", "/v1/subscriptions", {**subscription, "paused": True})
    schedule = {"topic": "reports", "body": "make it", "cron": "30 2 * * *", "zone": "Europe/Berlin"}
    ask(url, "PUT", "/v1/schedules/daily", schedule)


def fail(url: str, topic: str, group: str, *, count: int, reason: str = "no database") -> None:
    """Have a group that tries once give back so many messages, which are dead letters then."""
    place = f"/v1/topics/{topic}/groups/{group}"
    ask(url, "PUT", place, {"max_attempts": 1})
    held = ask(url, "POST", f"{place}/receive", {"max": count, "wait_ms": 20_000})["messages"]
    assert len(held) == count
    receipts = [message["receipt"] for message in held]
    ask(url, "POST", f"{place}/nack", {"receipts": receipts, "reason": reason})
