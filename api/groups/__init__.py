"""The calls on consumer groups and their dead letters."""
