"""A hub whose log goes nowhere does its work all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from edgehub.errors import DaemonUnreachableError
from tests.support.control import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

CONFIG = 'data_dir = "data"\n[mqtt]\nport = 0\n'


def answers(folder: Path) -> bool:
    """Return whether the hub answers on its control socket."""
    try:
        return call(folder / "data" / "control.sock", "status")["phase"] == "running"
    except DaemonUnreachableError:
        return False


@pytest.fixture(params=["full disk", "closed", "no reader"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Return a hub with a broken standard error."""
    (tmp_path / "edgehub.toml").write_text(CONFIG)
    redirect = {"full disk": "2>/dev/full", "closed": "2>&-", "no reader": "2>&1"}[request.param]
    with subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "edgehub", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        yield process
        process.kill()


def test_it_starts_reloads_and_stops(hub: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Every log line fails, nothing else does: exit code 0 at the end."""
    while not answers(tmp_path):
        assert hub.poll() is None
    hub.send_signal(signal.SIGHUP)
    assert answers(tmp_path)
    hub.send_signal(signal.SIGTERM)
    assert hub.wait(15) == 0
