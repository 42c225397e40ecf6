"""The control socket: how the command line talks to a running hub."""
