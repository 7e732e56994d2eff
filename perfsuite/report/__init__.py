"""What is shown. Only this room formats."""
