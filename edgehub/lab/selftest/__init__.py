"""The self-test: a real hub on the user's own disk, killed under load, and the account of it."""
