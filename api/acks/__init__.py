"""The calls with which a receiver acknowledges later."""
