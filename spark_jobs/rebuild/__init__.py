"""Indexes made anew from logs."""
