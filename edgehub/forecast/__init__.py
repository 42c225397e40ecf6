"""What the queues take in, measured, and what another manifest would make of it."""
