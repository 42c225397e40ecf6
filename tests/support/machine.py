"""A machine with systemd as its first process: a Debian root, booted in namespaces of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.notify_socket import NotifySocket

if TYPE_CHECKING:
    from types import TracebackType

BOOT_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0


class Machine:
    """See the module; it has a network of its own, with a loopback interface alone.

    Args:
        root: A folder from `make_root`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process: subprocess.Popen[bytes]
        self._leader = ""

    def __enter__(self) -> Self:
        # The machine says itself when it is up.
        notify = f"{self.root}.notify"
        with NotifySocket(notify) as heard, Path(f"{self.root}.console").open("wb") as console:
            self._process = subprocess.Popen(
                [
                    "systemd-nspawn",
                    f"--directory={self.root}",
                    "--boot",
                    "--private-network",
                    "--notify-ready=yes",
                    "--console=read-only",
                    # Nobody here keeps a list of machines.
                    "--register=no",
                    "--keep-unit",
                    "--kill-signal=SIGRTMIN+3",
                ],
                env={**os.environ, "NOTIFY_SOCKET": notify},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
            try:
                heard.wait_for("READY", "1", timeout_s=BOOT_TIMEOUT_S)
            except BaseException:
                self._end()
                raise
        pid = self._process.pid
        self._leader = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()[0]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, as root."""
        done = subprocess.run(
            [
                "nsenter",
                f"--target={self._leader}",
                "--all",
                "env",
                "--ignore-environment",
                "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        text = self.run("systemctl", "show", unit, f"--property={','.join(properties)}").stdout
        return dict(line.split("=", 1) for line in text.splitlines())

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file of the machine, and the folders above it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        file.chmod(mode)
