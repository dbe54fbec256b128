"""How the service tells of itself in its log."""
