"""The calls on one-call tasks and their queues."""
