"""The story of one message: what happened to it and when, read from the log."""
