"""A real Kafka broker for the tests, and the clients that look at it from outside."""
