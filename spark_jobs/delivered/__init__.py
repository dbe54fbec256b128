"""Delivered messages as rows, in batches and as a stream."""
