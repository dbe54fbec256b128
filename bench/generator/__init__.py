"""The load generator, in its own process so that its cost is not counted as the service's.

`python -m bench.generator` reads one job as JSON from stdin and writes JSON lines to stdout: its progress,
and finally its measurements. `bench.generator.run` starts it and reads them.
"""
