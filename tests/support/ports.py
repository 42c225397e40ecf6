"""Free TCP ports on loopback."""

import secrets
import socket
from pathlib import Path

LOWEST = 10_000
FEW = 1_000
"""With fewer ports to choose from, two tests at a time would often get the same one."""


def free_port() -> int:
    """Return a port that no program listens on now.

    It is not one of those that the kernel chooses by itself, for a server on port 0 or for a
    connection: of these one that is free now may be taken while its server is stopped.
    """
    chosen_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    ports = chosen_from - LOWEST
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", LOWEST + secrets.randbelow(ports) if ports > FEW else 0))
            except OSError:
                continue
            return int(probe.getsockname()[1])
