"""A node of a service in shards: a process in front, and one for each shard that is an ordinary service."""
