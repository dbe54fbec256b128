"""What the benchmark measures: this service and the systems people use instead, started on loopback."""
