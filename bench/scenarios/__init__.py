"""The scenarios, each in a module of its name with a coroutine `measure(bench)`."""
