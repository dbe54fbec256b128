"""The words of the service: messages, ids, delays, and the rules of what is admitted. Touches no world."""
