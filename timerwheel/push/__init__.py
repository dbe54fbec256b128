"""Push delivery: a consumer that hands a topic's messages to an HTTP endpoint, as signed webhooks."""
