"""The daemon as a process, as systemd would run it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.support.control import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 25.0
SHOWN_LINES = 50


class Daemon:
    """`edgehub run` on one folder; can be started again after a stop or a kill.

    Args:
        folder: Working folder; the control socket is in its `data`.
        config: Text of the settings file, None = the environment names the settings.
        env: Variables beside those of the tests.
        program: What Python runs.
    """

    def __init__(
        self,
        folder: Path,
        config: str | None,
        *,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "edgehub"),
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
        self._process: subprocess.Popen[bytes] | None = None
        self.mqtt_port = 0

    def start(self) -> Daemon:
        """Start and wait for the log event that says that the heads listen."""
        self._events = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, *self._program, "run", *self._options],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.env},
        )
        threading.Thread(
            target=self._collect, args=(self._process, self._events), daemon=True
        ).start()
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

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `condition`, which asks the daemon, holds; each answer paces the next."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the daemon did not get there"

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

    def _collect(
        self, process: subprocess.Popen[bytes], events: queue.Queue[dict[str, Any] | None]
    ) -> None:
        assert process.stderr is not None
        with process.stderr:
            for raw in process.stderr:
                try:
                    line = json.loads(raw)
                except ValueError:
                    line = {"event": "text", "text": raw.decode(errors="replace")}
                self.log.append(line)
                events.put(line)
        events.put(None)
