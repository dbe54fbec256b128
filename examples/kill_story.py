"""The worst day of a delayed-message service, played through and audited.

A service takes messages under load and is killed with SIGKILL. Then its LMDB index is removed altogether.
Spark rebuilds the index from the commit log, the service starts again, every message is delivered once, and
an audit of the log alone says so.

    python examples/kill_story.py [messages]

Needs `pip install 'timerwheel[spark]'` and Java 17; uses a temporary directory and a free port of 127.0.0.1.
"""

import asyncio
import itertools
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from timerwheel.client import Client, Draft, UnreachableError

TIMERWHEEL = [sys.executable, "-m", "timerwheel.cli.main"]
TOPIC = "orders"
SENDERS = 4
ARRAY = 20
DELAY_MS_MAX = 40_000
PATIENCE_S = 120


def serve(data: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a service; returns it and its URL once it takes messages."""
    command = [*TIMERWHEEL, "serve", "--port", "0", "--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    found = re.search(r"http://[0-9.:]+", process.stdout.readline())
    if found is None:
        raise SystemExit("the service did not start")
    return process, found[0]


def run(*words: str) -> dict[str, Any]:
    """Run a command to its end; returns the JSON that it prints."""
    print("$ timerwheel", *words, flush=True)
    done = subprocess.run([*TIMERWHEEL, *words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"it ended with {done.returncode}: {done.stdout}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def send_until_killed(url: str, process: subprocess.Popen[str], wanted: int) -> dict[str, str]:
    """Send arrays from several senders and kill the service in their midst; returns body by id."""
    accepted: dict[str, str] = {}
    numbers = itertools.count()

    async def send(client: Client) -> None:
        while True:
            bodies = [f"order {next(numbers)}" for _ in range(ARRAY)]
            drafts = [
                Draft(topic=TOPIC, body=body, delay_ms=random.randint(1, DELAY_MS_MAX)) for body in bodies
            ]
            receipts = await client.send_many(drafts)
            accepted.update((receipt.id, body) for receipt, body in zip(receipts, bodies, strict=True))
            if len(accepted) >= wanted:
                process.send_signal(signal.SIGKILL)

    async with Client(url) as client:
        outcomes = await asyncio.gather(*(send(client) for _ in range(SENDERS)), return_exceptions=True)
    process.kill()  # if it was not, because the senders failed
    process.wait()
    for outcome in outcomes:
        if not isinstance(outcome, UnreachableError):
            raise SystemExit(f"a sender ended with {outcome!r}")
    return accepted


async def receive_all(url: str, accepted: dict[str, str]) -> Counter[str]:
    """Read the topic until everything accepted came, and then to its end; returns how often each id came."""
    came: Counter[str] = Counter()
    async with asyncio.timeout(PATIENCE_S), Client(url) as client:
        async for message in client.receive(TOPIC):
            came[message.id] += 1
            if accepted.get(message.id, message.text) != message.text:
                raise SystemExit(f"message {message.id} came with another body")
            if came.keys() >= accepted.keys() and not (await client.wheel()).pending:
                break
        return Counter([message.id async for message in client.receive(TOPIC, follow=False)])


def main() -> None:
    """Play it."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    with tempfile.TemporaryDirectory(prefix="timerwheel-story-") as made:
        data = Path(made) / "data"
        process, url = serve(data)
        print(f"a service takes messages at {url}", flush=True)
        accepted = asyncio.run(send_until_killed(url, process, wanted))
        print(f"killed after it had accepted {len(accepted):,} messages")
        shutil.rmtree(data / "index")
        print("its index is gone")
        rebuilt = run("rebuild", "--data", str(data))
        process, url = serve(data)
        print("the service is back", flush=True)
        try:
            came = asyncio.run(receive_all(url, accepted))
        finally:
            process.terminate()
            process.wait()
        missing = [one for one in accepted if came[one] != 1]
        unanswered = len(came) - len(accepted)
        print(f"{len(came):,} messages came, {unanswered:,} of them sent when the kill cut off the answer")
        if missing or max(came.values()) > 1 or unanswered % ARRAY:
            raise SystemExit(f"{len(missing)} messages came not once: {missing[:3]}")
        audit = run("audit", "--data", str(data), "--out", str(Path(made) / "audit"))
        for name, answer in (("rebuild", rebuilt), ("audit", audit)):
            seconds = answer.get("seconds") or answer["run"]["seconds"]
            print(name, " ".join(f"{stage} {took:.1f} s" for stage, took in seconds.items()))
        print("every message was delivered exactly once, and the log says so")


if __name__ == "__main__":
    main()
