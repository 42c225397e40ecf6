"""The notification socket of the service manager: one datagram, some assignments.

Owns the form of the messages and which socket they go to; it calls nothing of the hub. Invariants:
sending never waits and never raises; what changes the unit's state is kept until it could be sent,
in order, what is only fresh is lost.

Source: sd_notify(3), sd_watchdog_enabled(3), unix(7) on abstract addresses.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_MESSAGES_MAX: Final = 8
"""State messages kept while the service manager does not read; the oldest go first."""

STATUS_CHARACTERS_MAX: Final = 400

log = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started the process, if there is one.

    Args:
        address: Value of `$NOTIFY_SOCKET`: a path, or `@` and a name of the abstract space; None =
            there is none, and every message is dropped.
        watchdog_s: Longest silence before the process is killed, None = it may be silent.
    """

    def __init__(self, address: str | None, *, watchdog_s: float | None = None) -> None:
        assert watchdog_s is None or watchdog_s > 0, watchdog_s
        self._address = address
        self.watchdog_s = watchdog_s if address else None
        self._unsent: deque[str] = deque(maxlen=STATE_MESSAGES_MAX)
        self._failing = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, pid: int) -> ServiceManager:
        """Take what systemd put into the environment.

        Args:
            environ: Variables of the process.
            pid: Own process id; a watchdog that was meant for another one is not ours.
        """
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            log.warning("notify.address_unknown", address=address)
            address = None
        return cls(address, watchdog_s=_watchdog_s(environ, pid))

    @property
    def listens(self) -> bool:
        """Whether there is a service manager."""
        return self._address is not None

    def notify(self, *assignments: str) -> None:
        """Send what is only worth something now, such as a status; may be lost."""
        self._send_all(fresh="\n".join(assignments))

    def change_state(self, *assignments: str) -> None:
        """Send what must arrive; kept for the next message if it cannot be sent now."""
        if self._address is not None:
            self._unsent.append("\n".join(assignments))
            self._send_all(fresh="")

    def _send_all(self, *, fresh: str) -> None:
        if self._address is None:
            return
        while self._unsent:
            if not self._send(self._unsent[0]):
                return
            self._unsent.popleft()
        if fresh:
            self._send(fresh)

    def _send(self, message: str) -> bool:
        assert self._address is not None
        # An abstract address begins with a zero byte, which the environment cannot hold.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.setblocking(False)
                sending.sendto(message.encode(), address)
        except OSError as error:
            if not self._failing:
                self._failing = True
                log.warning("notify.send_failed", address=self._address, reason=error.strerror)
            return False
        self._failing = False
        return True


def status(text: str) -> str:
    """Return the assignment that sets the one line which `systemctl status` shows."""
    line = " ".join(text.split())
    return f"STATUS={line[:STATUS_CHARACTERS_MAX]}"


def extend_timeout(seconds: float) -> str:
    """Return the assignment that asks for `seconds` more before a start or stop has failed."""
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}"


def monotonic(seconds: float) -> str:
    """Return the assignment that says when a reload began, by CLOCK_MONOTONIC."""
    return f"MONOTONIC_USEC={int(seconds * 1_000_000)}"


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isascii() and text.isdigit() and int(text) else None
