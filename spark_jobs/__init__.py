"""The data pipeline over commit logs."""
