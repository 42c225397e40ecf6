"""What a TCP connection costs the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CONNECT = """
import os, socket, sys, uvloop
from edgehub.mqtt.tcp import connect_tcp

async def work(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        (await connect_tcp(host, server.getsockname()[1])).close()
    print(len(os.listdir("/proc/self/task")))

uvloop.run(work(sys.argv[1]))
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_needs_no_thread(host: str) -> None:
    """Where memory is short there may be none, and uvloop ends the process over that."""
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, host], check=True, capture_output=True, timeout=15
    )
    assert int(done.stdout) == 1
