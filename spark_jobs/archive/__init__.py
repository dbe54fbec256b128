"""Archives sealed segments as Parquet, and restores them."""
