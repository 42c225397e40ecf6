"""What can be read of a damaged database file is copied into a new one."""
