"""What a run of a job tells other systems: metrics for Prometheus, events for OpenLineage."""
