"""Audits and archives as tables of Delta Lake."""
