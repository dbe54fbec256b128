"""The words of the service: messages, ids, delays, and the rules of admission. Does no I/O."""
