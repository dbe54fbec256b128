"""The history of one message, from the log: what happened to it, and when."""
