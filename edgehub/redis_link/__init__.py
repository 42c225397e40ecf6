"""Access to a Redis server that several hubs share; imported only where the settings name one."""
