"""A real Redis server on loopback, as a process with its own folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

START_TIMEOUT_S = 10.0


class RedisServer:
    """One server; `start` and `stop` may be repeated, port and folder stay.

    Args:
        folder: For its data and log.
        arguments: Further options of the command line.
        persistent: Keeps its data over `stop`: every write is in its file before it is answered.
    """

    def __init__(self, folder: Path, *arguments: str, persistent: bool = False) -> None:
        self.port = free_port()
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir(parents=True)
        self._kept = folder / f"redis-{self.port}-kept"
        keeping = ["--appendonly", "yes", "--appendfsync", "always"] if persistent else []
        self._arguments = [*keeping, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the URL of its database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start and wait until it answers."""
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is missing: apt-get install redis-server"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    *("--port", str(self.port)),
                    *("--bind", "127.0.0.1"),
                    *("--dir", str(self._folder)),
                    *("--save", ""),
                    *self._arguments,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process.poll() is None, f"Redis ended; see {self._folder}/log"
            assert time.monotonic() < deadline, f"Redis does not answer on {self.port}"
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    answer = probe.recv(64)
                    if answer.startswith((b"+PONG", b"-NOAUTH")):
                        return self
            except OSError:
                pass
            # A process that starts gives no event when it answers.
            time.sleep(0.02)

    def remember(self) -> None:
        """Keep its data as they are now, for `stop`."""
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self._folder, self._kept)

    def stop(self, *, forget: bool = False, rewind: bool = False) -> None:
        """Kill it, as a power cut would; harmless when it does not run.

        Args:
            forget: Its files go as well.
            rewind: Its files become those that it had at `remember`, as after a fail-over to a
                copy that lags behind.
        """
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if forget:
            shutil.rmtree(self._folder)
            self._folder.mkdir()
        if rewind and self._kept.exists():
            shutil.rmtree(self._folder)
            shutil.copytree(self._kept, self._folder)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self, milliseconds: int) -> None:
        """Have it answer nobody for a time."""
        self.command("CLIENT", "PAUSE", str(milliseconds), "ALL")

    def cut(self) -> None:
        """Close the connections of all its clients, as a broken network would."""
        self.command("CLIENT", "KILL", "TYPE", "normal")

    def command(self, *words: str) -> bytes:
        """Send a command past every client of the hub and give the raw answer's beginning."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            packed = f"*{len(words)}\r\n" + "".join(
                f"${len(word.encode())}\r\n{word}\r\n" for word in words
            )
            connection.sendall(packed.encode())
            return connection.recv(65536)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()
