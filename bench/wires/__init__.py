"""The protocols of the systems that are measured, without I/O: see `bench.wires.wire`."""
