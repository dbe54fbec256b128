"""What the log means: `State.apply` lets a record take effect, and the tables that it changes."""
