"""A service that is killed again and again under load, and books that say what it owes."""
