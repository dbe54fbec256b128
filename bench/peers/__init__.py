"""The systems that the benchmark measures: this service and its alternatives, started on loopback."""
