"""The calls on push subscriptions."""
