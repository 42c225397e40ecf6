"""Several hubs, one coordinator and a device on a clock of their own: what would happen."""
