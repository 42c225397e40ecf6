"""The daemon as a process, as systemd would run it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.support.command_line import edgehub
from tests.support.control import call
from tests.support.forked_hub import ForkedHub

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.support.command_line import CommandResult

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 25.0
SHOWN_LINES = 50
EDGEHUB = ("-m", "edgehub")
LOADING = ("LD_", "PYTHON")
"""Beginnings of variables that count when a process loads its modules."""
POLL_S = 0.01


class Daemon:
    """`edgehub run` on one folder; can be started again after a stop or a kill.

    Args:
        folder: Working folder; the control socket is in its `data`.
        config: Text of the settings file, None = the environment names the settings.
        env: Variables beside those of the tests.
        program: What Python runs. By default it is forked from a process with the modules loaded,
            unless a variable changes what Python or its libraries load.
    """

    def __init__(
        self,
        folder: Path,
        config: str | None,
        *,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = EDGEHUB,
    ) -> None:
        self.folder = folder
        self.config = folder / "edgehub.toml"
        if config is not None:
            self.config.write_text(config, "utf-8")
        self.env = dict(env or {})
        self._program = program
        self._options = [] if config is None else ["--config", str(self.config)]
        self.log: list[dict[str, Any]] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process: subprocess.Popen[bytes] | ForkedHub | None = None
        self.mqtt_port = 0

    def start(self) -> Daemon:
        """Start and wait for the log event that says that the heads listen."""
        self._events = queue.Queue()
        log, written = os.pipe()
        command = ["run", *self._options]
        env = {**os.environ, **self.env}
        is_plain = tuple(self._program) == EDGEHUB and not any(map(_counts_at_loading, self.env))
        try:
            if is_plain:
                self._process = ForkedHub(command, cwd=self.folder, env=env, stderr=written)
            else:
                arguments = [sys.executable, *self._program, *command]
                self._process = subprocess.Popen(
                    arguments, cwd=self.folder, env=env, stderr=written
                )
        finally:
            os.close(written)
        threading.Thread(target=self._collect, args=(log, self._events), daemon=True).start()
        started = self.wait_event("hub.started", START_TIMEOUT_S)
        self.mqtt_port = started["mqtt_port"]
        return self

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def wait_event(self, name: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Return the next log line with this event; fails when the daemon ends first."""
        while True:
            line = self._events.get(timeout=timeout_s)
            if line is None:
                msg = f"the daemon ended before {name}: {self.log[-5:]}"
                raise AssertionError(msg)
            if line.get("event") == name:
                return line

    def wait_text(self, part: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait for a line of plain text, such as a traceback, that holds `part`."""
        while part not in str(self.wait_event("text", timeout_s)["text"]):
            pass

    def call(self, command: str, **arguments: Any) -> Any:
        """Ask over the control socket."""
        return call(self.folder / "data" / "control.sock", command, **arguments)

    def edgehub(self, *arguments: str, stdin: bytes = b"") -> CommandResult:
        """Run the command line, in this process, in the folder of the daemon."""
        return edgehub(*arguments, cwd=self.folder, env=self.env, stdin=stdin)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `condition`, which asks the daemon, holds."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the daemon did not get there"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; gives the exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Leave no process behind; print the end of the log, which a test that fails shows."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for line in self.log[-SHOWN_LINES:]:
            print(json.dumps(line, ensure_ascii=False))

    def _collect(self, log: int, events: queue.Queue[dict[str, Any] | None]) -> None:
        with os.fdopen(log, "rb") as lines:
            for raw in lines:
                try:
                    line = json.loads(raw)
                except ValueError:
                    line = {"event": "text", "text": raw.decode(errors="replace")}
                self.log.append(line)
                events.put(line)
        events.put(None)


def _counts_at_loading(name: str) -> bool:
    return name.startswith(LOADING)
