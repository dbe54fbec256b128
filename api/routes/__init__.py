"""The table of every call: one module for each kind of thing that calls are about."""
