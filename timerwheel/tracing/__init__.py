"""Spans for OpenTelemetry, if the extra is there; else nothing."""
