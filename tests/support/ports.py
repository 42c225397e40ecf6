"""Free TCP ports on loopback."""

import socket


def free_port() -> int:
    """Return a port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
