"""Backups of a data directory: made beside a running service, verified, restored."""
