"""The calls on messages: send, get, list, recall, reschedule, history."""
