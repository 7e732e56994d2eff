"""What a terminal shows, of pytest's sessions and of the commands beside pytest."""
