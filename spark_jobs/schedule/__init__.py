"""Tables into the wheel: each row is a message that is due when the row says, and stored once."""
