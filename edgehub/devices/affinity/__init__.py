"""Which hub speaks for a device: the coordinator, its notices, and what a hub remembers."""
