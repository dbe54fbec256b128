"""Audits logs: proves from the logs alone that every timer was handled correctly."""
