"""One-call tasks: messages that say which URL to call, and when."""
