"""`python -m bench.peers.redis_poller PORT TOPIC..`: moves due messages in Redis to the lists of consumers.

Works like delay-queue libraries, with settings that favour Redis: a Lua script of BullMQ moves up to 1,000
messages at once, one of asynq 100; Sidekiq takes one at a time and polls about every 5 s. Here a script that
is loaded once moves up to BATCH_MAX every PAUSE_MS, and again at once if a topic had that many.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence

from bench.wires.resp import body_key, command, due_key, ready_key
from bench.wires.wire import RefusedError

HOST = "127.0.0.1"
BATCH_MAX = 1_000
PAUSE_MS = 1

MOVE = b"""
local ids = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #ids > 0 then
    redis.call('RPUSH', KEYS[3], unpack(redis.call('HMGET', KEYS[2], unpack(ids))))
    redis.call('HDEL', KEYS[2], unpack(ids))
    redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #ids - 1)
end
return #ids
"""
"""Keys: waiting ids, bodies, ready list. Arguments: now in milliseconds, maximum count."""


def polls(pid: int) -> str:
    """The line that a poller prints when it starts."""
    return f"process {pid} polls"


def poll(port: int, topics: Sequence[str]) -> None:
    """Poll until Redis closes the connection. Raises RefusedError if it answers with an error."""
    with socket.create_connection((HOST, port)) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(command(b"SCRIPT", b"LOAD", MOVE))
        answers.readline()
        script = answers.readline().strip()
        keys = [(due_key(topic), body_key(topic), ready_key(topic)) for topic in topics]
        print(polls(os.getpid()), flush=True)
        while True:
            now_ms = b"%d" % (time.time_ns() // 1_000_000)
            moves = [command(b"EVALSHA", script, b"3", *three, now_ms, b"%d" % BATCH_MAX) for three in keys]
            connection.sendall(b"".join(moves))
            moved = [answers.readline() for _ in moves]
            if not all(moved):
                return
            if any(line.startswith(b"-") for line in moved):
                raise RefusedError(b"".join(moved).decode(errors="replace"))
            if max(int(line[1:]) for line in moved) < BATCH_MAX:
                time.sleep(PAUSE_MS / 1000)


if __name__ == "__main__":
    poll(int(sys.argv[1]), sys.argv[2:])
