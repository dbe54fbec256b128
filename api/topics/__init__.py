"""The calls on topics and their queues."""
