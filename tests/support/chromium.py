"""A headless Chromium without a network: does a file open, and what does its console say?"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Opened:
    """What a browser made of a file.

    Attributes:
        document: Its document after loading.
        console: What was written to the console; errors of loading among them.
    """

    document: str
    console: list[str]


def open_page(page: Path, profile: Path) -> Opened:
    """Open a file with every host name unknown and a proxy where nobody listens."""
    chromium = shutil.which("chromium")
    assert chromium, "install Debian's chromium"
    told = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--proxy-server=127.0.0.1:9",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    console = [line for line in told.stderr.splitlines() if ":CONSOLE" in line]
    return Opened(told.stdout, console)
