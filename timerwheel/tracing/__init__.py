"""Spans for OpenTelemetry, if the extra is installed; else nothing."""
