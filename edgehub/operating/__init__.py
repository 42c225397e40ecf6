"""What a person asks of the running hub: what waits and why, and what is to become of it."""
