"""Starts that fail half-way: the process ends by itself, and says what is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

UNSTARTABLE = Path(__file__).parents[1] / "support" / "unstartable_daemon.py"
END_TIMEOUT_S = 15.0


def run(daemon: Daemon, fault: str) -> tuple[int, str]:
    """Start a hub with something in its way; gives its exit code and what it said."""
    ended = subprocess.run(
        [sys.executable, UNSTARTABLE, "run", "--config", daemon.config],
        cwd=daemon.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "TEST_FAULT": fault},
        timeout=END_TIMEOUT_S,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("boot id", 3, "let the hub read /proc/sys/kernel/random/boot_id"),
        ("recovery", 3, "cannot be opened (SQLITE_IOERR: disk I/O error)"),
        ("damage", 1, "planted"),
        ("parts", 1, "planted"),
        ("journal", 1, "planted"),
        ("egress", 1, "planted"),
    ],
)
def test_a_start_that_fails_half_way_ends(
    make_daemon: Callable[..., Daemon], fault: str, code: int, said: str
) -> None:
    """No thread of the database keeps the process alive for ever."""
    found, text = run(make_daemon(), fault)
    assert said in text
    assert found == code
    assert ("Traceback" in text) is (code == 1)
