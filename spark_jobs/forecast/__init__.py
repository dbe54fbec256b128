"""What falls due when."""
