"""Fixtures for every layer."""
