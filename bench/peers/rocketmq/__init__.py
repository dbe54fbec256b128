"""Apache RocketMQ 5 as a peer: fetching it, its settings, and starting it."""
