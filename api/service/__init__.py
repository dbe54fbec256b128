"""The calls on the service itself: wheel, health, metrics, live events."""
