"""A device as a process, see `device_program`: started, killed, and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("device_program.py")


class DeviceProcess:
    """One device.

    Args:
        device_id: Its name.
        port: Of the hub that it connects to.
        folder: For what it writes down.
        patches: Of its reported properties, which it reports one after another.
    """

    def __init__(
        self,
        device_id: str,
        port: int,
        folder: Path,
        patches: list[dict[str, Any]] | None = None,
    ) -> None:
        self._file = folder / f"{device_id}.lines"
        self._file.touch()
        self._arguments = [device_id, str(port), str(self._file)]
        if patches is not None:
            file = folder / f"{device_id}.patches"
            file.write_text(json.dumps(patches))
            self._arguments.append(str(file))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> DeviceProcess:
        """Start it; it connects by itself."""
        command = [sys.executable, str(PROGRAM), *self._arguments]
        self._process = subprocess.Popen(command)
        return self

    def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def taken(self, kind: str) -> list[Any]:
        """Return what it took so far: of `message`, `call` or `patch`."""
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [body for each, body in lines if each == kind]
