"""What the hub tells the service manager that runs it."""
