"""Backups of a data directory: created while the service runs, verified, restored."""
