"""Sealed segments as Parquet, and the way back."""
