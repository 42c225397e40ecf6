"""Which hub owns a device: the coordinator, its notices, and the flags of a hub."""
