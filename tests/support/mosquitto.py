"""A real Mosquitto on loopback, as a process with its own folder."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.ports import free_port

if TYPE_CHECKING:
    from types import TracebackType

START_TIMEOUT_S = 10.0


def find(program: str) -> str:
    """Return the path of a program of the Mosquitto packages."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    assert found is not None, f"{program} is missing: apt-get install mosquitto mosquitto-clients"
    return found


class Mosquitto:
    """One broker; `start` and `stop` may be repeated, the port stays.

    Args:
        folder: For configuration and password file.
        lines: Further lines of the configuration.
        users: Passwords by user; with any, anonymous clients are refused.
        port: 0 = a free one.
        host: Address to listen on.
    """

    def __init__(
        self,
        folder: Path,
        *lines: str,
        users: dict[str, str] | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.port = port or free_port()
        self._host = host
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / f"mosquitto-{self.port}.conf"
        config = [
            f"listener {self.port} {host}",
            f"allow_anonymous {'false' if users else 'true'}",
            "persistence false",
            "max_queued_messages 0",
            *lines,
        ]
        if users:
            passwords = folder / f"passwords-{self.port}"
            passwords.touch(0o600)
            for user, password in users.items():
                command = [find("mosquitto_passwd"), "-b", str(passwords), user, password]
                subprocess.run(command, check=True, capture_output=True)
            config.append(f"password_file {passwords}")
        if Path("/proc/self").owner() == "root":
            # Started as root, Mosquitto changes to a user who cannot read the test's folder.
            config.append("user root")
        self._config.write_text("\n".join(config) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        return [find("mosquitto"), "-c", str(self._config)]

    def start(self) -> Self:
        """Start and wait until it accepts connections."""
        self._process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process.poll() is None, f"Mosquitto ended; see {self._config}"
            assert time.monotonic() < deadline, f"Mosquitto does not listen on {self.port}"
            try:
                socket.create_connection((self._host, self.port), timeout=1).close()
            except OSError:
                # A process that starts gives no event when its port is open.
                time.sleep(0.02)
            else:
                return self

    def stop(self) -> None:
        """Kill it, as a power cut would; harmless when it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def snapshot(self) -> None:
        """Have it write down what it holds, as it does from time to time."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()
