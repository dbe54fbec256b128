"""The demo: a service of its own with the life of a small web shop in it, thrown away at the end."""
