"""Apache RocketMQ 5 as a peer: what fetches it, its settings, and what starts it."""
