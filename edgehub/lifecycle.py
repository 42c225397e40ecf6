"""Signals and phases: how the process is asked to stop, abort and reload.

Owns the signal handlers while it is open. Invariant: the first SIGTERM or SIGINT asks for a drain,
a second one aborts it; the handlers found before are put back at the end.
"""

from __future__ import annotations

import asyncio
import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Phase(StrEnum):
    """Where a hub stands between its start and its end."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Signals:
    """Translates the process signals into calls, on the loop's thread.

    Args:
        stop: Called on the first SIGTERM or SIGINT.
        abort: Called on each further one.
        reload: Called on SIGHUP.
    """

    __slots__ = ("_abort", "_loop", "_reload", "_stop", "_stopping")

    def __init__(
        self, *, stop: Callable[[], None], abort: Callable[[], None], reload: Callable[[], None]
    ) -> None:
        self._stop = stop
        self._abort = abort
        self._reload = reload
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self._loop is not None
        for number in (*_STOP_SIGNALS, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _on_stop(self) -> None:
        if self._stopping:
            self._abort()
            return
        self._stopping = True
        self._stop()
