"""What an operator asks of a running hub, or changes."""
