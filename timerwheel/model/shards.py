"""Shards: a service in several logs, each with its own topics. To which shard topics and logs belong. Pure.

1. A topic is in one shard, which follows from its name and the number of shards alone: every node and every
   client says the same. The number is fixed when the service is made.
2. A log knows its shard: its own id, which is in the header of each of its segments, says so. So do a copy, a
   backup and an archive of it.
3. An id of a message begins with the number of its shard. A service that is not in shards is shard 0 of 1.
4. The service's own topics, dead letters and retries are of every shard: they are stored with the messages
   from which they come.
"""

import zlib
from typing import NamedTuple

from timerwheel.settings import SHARDS_MAX

SHARD_BITS = 16
ROOT_BITS = 64 - SHARD_BITS
"""Bits of a log's offset in the id of a message: 256 TiB for each shard."""
ROOT_MASK = (1 << ROOT_BITS) - 1

LOG_ID_BYTES = 16
SHARED_TOPICS = frozenset({"rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"})
SHARED_PREFIXES = ("%DLQ%", "%RETRY%")
TASK_PREFIXES = ("%TASK%", "%TASKLOG%")
"""The two topics of a task queue are in one shard."""

_VERSION_AT, _VARIANT_AT = 6, 8  # of a UUID (RFC 9562)
_OWN_LAYOUT = 0x80
_VARIANT = 0x80


class Shard(NamedTuple):
    """The shard `number`, from 0, `of` so many."""

    number: int
    of: int

    def holds(self, topic: str) -> bool:
        """Whether messages of this topic may be in this shard."""
        return shard_of_topic(topic, self.of) in (self.number, None)


ALONE = Shard(0, 1)


def is_shared(topic: str) -> bool:
    """Whether every shard has a topic of this name: see 4."""
    return topic in SHARED_TOPICS or topic.startswith(SHARED_PREFIXES)


def shard_of_topic(topic: str, count: int) -> int | None:
    """Return the number of the shard that a topic is in, of so many; None if it is in each.

    CRC-32 of the name in UTF-8, modulo the number of shards: easy to say in any language. The topics of a
    task queue are where a topic with the name of the queue would be.
    """
    if is_shared(topic):
        return None
    for prefix in TASK_PREFIXES:
        topic = topic.removeprefix(prefix)
    return zlib.crc32(topic.encode(errors="surrogatepass")) % count


def shard_of_log(log_id: bytes) -> Shard:
    """Return the shard of a log by its id."""
    is_own = log_id[_VERSION_AT] & 0xF0 == _OWN_LAYOUT and log_id[_VARIANT_AT] & 0xC0 == _VARIANT
    if not is_own:
        return ALONE
    found = Shard(int.from_bytes(log_id[:2], "big"), int.from_bytes(log_id[2:4], "big"))
    return found if found.number < found.of <= SHARDS_MAX else ALONE


def log_id_of(shard: Shard, random: bytes) -> bytes:
    """Return the id of a new log from random bytes: a UUID, of version 8 with the shard, or of version 4."""
    assert len(random) == LOG_ID_BYTES
    made = bytearray(random)
    version = 0x40
    if shard != ALONE:
        made[:2], made[2:4] = shard.number.to_bytes(2, "big"), shard.of.to_bytes(2, "big")
        version = _OWN_LAYOUT
    made[_VERSION_AT] = made[_VERSION_AT] & 0x0F | version
    made[_VARIANT_AT] = made[_VARIANT_AT] & 0x3F | _VARIANT
    return bytes(made)
