"""The hub under test: `edgehub run` as a process of its own, to be killed and started again.

Owns the process. Invariant: none is left behind after `close`, and it knows nothing of the user's
own hub: not its settings, nor its environment, nor its state.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.lab.selftest.scratch import DRAIN_TIMEOUT_S, SETTINGS, SelfTestError

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.clock import Clock

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = DRAIN_TIMEOUT_S + 30.0
_LINE_BYTES_MAX: Final = 2**20
_TROUBLE_LINES: Final = 5
# Settings from the environment win over a file, and the service manager waits for one hub alone.
_FOREIGN_PREFIX: Final = "EDGEHUB_"
_FOREIGN: Final = {"CHECKENTIREQUEUEONCLEANUP", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}


class HubProcess:
    """One hub on the scratch folder.

    Args:
        folder: The scratch folder, with settings.
        group: Where the task that reads the hub's log goes.
        clock: Measures starts.
    """

    def __init__(self, folder: Path, group: asyncio.TaskGroup, clock: Clock) -> None:
        self._folder = folder
        self._group = group
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._trouble: deque[str] = deque(maxlen=_TROUBLE_LINES)
        self.serving = asyncio.Event()
        """Set while the hub listens."""
        self.mqtt_port = 0

    async def start(self) -> float:
        """Start and wait until the hub listens.

        Returns:
            Seconds that it took.

        Raises:
            SelfTestError: If it ends instead, or does not get there.
        """
        began_s = self._clock.monotonic()
        process = await self._owned()
        assert process.stderr is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self.mqtt_port = await self._until_started(process.stderr)
        except TimeoutError as error:
            raise SelfTestError(
                self._with_trouble(f"the hub did not start within {START_TIMEOUT_S:.0f} s")
            ) from error
        self._group.create_task(self._follow(process.stderr), name="hub log")
        self.serving.set()
        return self._clock.monotonic() - began_s

    async def outlives(self, seconds: float) -> None:
        """Wait while it runs for so long.

        Raises:
            SelfTestError: If it ends by itself.
        """
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                code = await self._process.wait()
        except TimeoutError:
            return
        raise SelfTestError(self._with_trouble(f"the hub ended by itself with exit code {code}"))

    async def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self.serving.clear()
        self._process.kill()
        cancelled: asyncio.CancelledError | None = None
        while self._process.returncode is None:
            try:
                await self._process.wait()
            except asyncio.CancelledError as error:
                # Until it has ended it may write into the folder, which is about to be removed.
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def stop(self) -> None:
        """Ask for the orderly stop and wait for it.

        Raises:
            SelfTestError: If it does not end, or not with exit code 0.
        """
        assert self._process is not None
        self.serving.clear()
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError as error:
            raise SelfTestError(
                self._with_trouble(f"the hub did not stop within {STOP_TIMEOUT_S:.0f} s")
            ) from error
        if code:
            raise SelfTestError(self._with_trouble(f"the hub stopped with exit code {code}"))

    async def close(self) -> None:
        """Leave no process behind; harmless when there is none."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    async def _owned(self) -> asyncio.subprocess.Process:
        # A start that is cut short must not leave an unknown process behind.
        spawning = self._group.create_task(self._spawn(), name="spawn")
        cancelled: asyncio.CancelledError | None = None
        while not spawning.done():
            try:
                await asyncio.shield(spawning)
            except asyncio.CancelledError as error:
                # Also after a second cancel of an impatient operator.
                cancelled = error
        self._process = spawning.result()
        if cancelled is not None:
            raise cancelled
        return self._process

    async def _spawn(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "edgehub", "run", "--config", str(self._folder / SETTINGS)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES_MAX,
                cwd=self._folder,
                env=self._environment(),
                # Ctrl-C is for us; the hub is killed when its time has come.
                start_new_session=True,
            )
        except OSError as error:
            raise SelfTestError(
                f"cannot start {sys.executable}: {error.strerror or error}"
            ) from error

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(_FOREIGN_PREFIX) and name.upper() not in _FOREIGN
        }
        # From the working folder: the whole path may be longer than a socket's name can be.
        return {**kept, "EDGEHUB_CONTROL_SOCKET": "control.sock"}

    async def _until_started(self, stderr: asyncio.StreamReader) -> int:
        while line := await stderr.readline():
            document = self._note(line)
            if document.get("event") == "hub.started":
                return int(document["mqtt_port"])
        assert self._process is not None
        code = await self._process.wait()
        raise SelfTestError(self._with_trouble(f"the hub ended at its start with exit code {code}"))

    async def _follow(self, stderr: asyncio.StreamReader) -> None:
        while line := await stderr.readline():
            self._note(line)

    def _note(self, line: bytes) -> dict[str, Any]:
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            document = {}
        if not isinstance(document, dict) or document.get("level") not in {"debug", "info"}:
            self._trouble.append(line.decode(errors="replace").strip())
        return document if isinstance(document, dict) else {}

    def _with_trouble(self, text: str) -> str:
        return "\n".join([text, *(f"  its log: {line}" for line in self._trouble)])
