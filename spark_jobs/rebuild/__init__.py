"""Rebuilds indexes from logs."""
