"""The load generator: a process of its own, so that what it costs is not the service's.

`python -m bench.generator` reads one job as JSON from its input, tells its progress on its output, a JSON
object a line, and in the end what it measured. `bench.generator.run` starts it and reads it.
"""
