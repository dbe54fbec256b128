"""Names of message properties that several modules read; they are RocketMQ's. Pure."""

from typing import Final

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
"""Keys of a message, separated by spaces."""
SHARDING_KEY: Final = "__SHARDINGKEY"
"""Messages of a topic with the same one go to the same queue; ordered groups take them one by one."""
