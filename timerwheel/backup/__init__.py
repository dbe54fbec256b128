"""Backup: a copy of a data directory, taken while its service runs, and the way back."""
