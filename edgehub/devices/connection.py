"""A device's own upstream connection: opened when it is needed, closed when it is unused.

Owns when the link is opened and closed, and counts who uses it. Invariants: a close never cuts a
running activity, it waits for the last one; later work does not open the connection again
unless this hub owns the device; when the last activity ends, the connection stays open only if this
hub owns the device and no close was requested.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from msgspec import Struct

from edgehub.clock import Clock, Timer
from edgehub.devices.faults import DeviceConnectionError, DeviceNotOwnedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


KEEP_ALIVE_S_MIN: Final = 60

log = structlog.get_logger(__name__)


class DeviceLink(Protocol):
    """The session behind a device's connection."""

    @property
    def is_open(self) -> bool:
        """Return whether it is open; a link that the peer ended is not."""

    async def open(self) -> None:
        """Open it; when cancelled or failed it is closed.

        Raises:
            DeviceConnectionError: It cannot be opened now.
        """

    async def close(self) -> None:
        """Close it; afterwards it is closed, whatever is raised.

        Raises:
            DeviceConnectionError: The peer was not notified.
        """


class ConnectionStatistics(Struct, frozen=True, kw_only=True):
    """A device's connection at one moment.

    Attributes:
        is_open: Whether the link is open.
        activities: How many use it.
        close_requested: Whether it closes after the last of them.
        opened: How often it was opened.
        closed: How often it was closed by us.
    """

    is_open: bool
    activities: int
    close_requested: bool
    opened: int
    closed: int


class DeviceConnection:
    """One device's upstream connection.

    Args:
        device_id: Whose connection.
        link: Its session.
        owns: Returns whether this hub owns the device now.
        clock: For the idle time.
        tasks: Where a close runs for which no caller waits.
    """

    __slots__ = (
        "_activities",
        "_clock",
        "_close_requested",
        "_closed",
        "_closing",
        "_device_id",
        "_idle_timer",
        "_is_ending",
        "_keep_alive_s",
        "_link",
        "_opened",
        "_owns",
        "_tasks",
        "_transition",
    )

    def __init__(
        self,
        device_id: str,
        link: DeviceLink,
        *,
        owns: Callable[[], bool],
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._device_id = device_id
        self._link = link
        self._owns = owns
        self._clock = clock
        self._tasks = tasks
        self._activities = 0
        self._close_requested = False
        self._keep_alive_s = 0
        self._idle_timer = Timer(clock, self._idle_over)
        self._is_ending = False
        self._transition = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._opened = self._closed = 0

    @property
    def is_open(self) -> bool:
        """Return whether the link is open."""
        return self._link.is_open

    @property
    def is_idle(self) -> bool:
        """Return whether it is unused and neither being opened nor closed."""
        return self._activities == 0 and not self._transition.locked()

    def set_keep_alive(self, seconds: int) -> None:
        """Set after how many idle seconds it closes; 0 = never, else at least 60."""
        assert seconds == 0 or seconds >= KEEP_ALIVE_S_MIN, seconds
        self._keep_alive_s = seconds

    @asynccontextmanager
    async def activity(self) -> AsyncIterator[None]:
        """Count a user of the connection, which may span several calls over it."""
        self._activities += 1
        try:
            yield
        finally:
            self._activities -= 1
            if self._activities == 0 and self._link.is_open:
                self._arm_idle_timer()
            await self._settle()

    async def ensure_open(self, *, entitled: bool = False) -> None:
        """Open the connection unless it is open; to be called inside an activity.

        Args:
            entitled: The work may open it whichever hub owns the device: a load, a join, and a
                message that was elected here before the device was given away.

        Raises:
            DeviceNotOwnedError: It is closed, and another hub owns the device.
            DeviceConnectionError: It cannot be opened.
        """
        assert self._activities > 0, "outside of an activity nothing would close it"
        async with self._transition:
            if not self._link.is_open:
                if self._is_ending:
                    raise DeviceConnectionError(self._device_id, "the hub is ending")
                if not entitled and not self._owns():
                    raise DeviceNotOwnedError(
                        self._device_id, "another hub owns it; the connection stays closed"
                    )
                await self._link.open()
                self._opened += 1
        self._arm_idle_timer()

    def keep(self) -> None:
        """Cancel a close that has not happened yet: this hub was elected."""
        self._close_requested = False

    def request_close(self) -> None:
        """Close it as soon as it is unused."""
        if not self._link.is_open and self._activities == 0 and not self._transition.locked():
            return
        self._close_requested = True
        if self._activities == 0:
            self._start_closing()

    def end(self) -> None:
        """Close it at the hub's end, or at the latest with its last activity."""
        self._is_ending = True
        self.request_close()

    async def settled(self) -> None:
        """Wait until it is neither being opened nor closed."""
        if self._closing is not None:
            await asyncio.shield(self._closing)
        async with self._transition:
            pass

    def statistics(self) -> ConnectionStatistics:
        """Return the connection as it is now."""
        return ConnectionStatistics(
            is_open=self._link.is_open,
            activities=self._activities,
            close_requested=self._close_requested,
            opened=self._opened,
            closed=self._closed,
        )

    async def _settle(self) -> None:
        if self._activities or not (self._close_requested or not self._owns()):
            return
        if not self._link.is_open:
            self._close_requested = False
            return
        # In a task of its own, so that a cancellation here does not leave it half closed.
        if closing := self._start_closing():
            await asyncio.shield(closing)

    def _start_closing(self) -> asyncio.Task[None] | None:
        name = f"close[{self._device_id}]"
        close = self._close()
        try:
            self._closing = self._tasks.create_task(close, name=name)
        except RuntimeError:
            # The hub fails, and its group takes no more tasks; the end of the process closes it.
            close.close()
            return None
        return self._closing

    async def _close(self) -> None:
        async with self._transition:
            if self._activities or not (self._close_requested or not self._owns()):
                return  # it is used again and closed afterwards, or this hub was elected
            self._close_requested = False
            self._idle_timer.cancel()
            if not self._link.is_open:
                return
            self._closed += 1
            try:
                await self._link.close()
            except DeviceConnectionError as exc:
                log.warning("device.close_failed", device_id=self._device_id, reason=str(exc))

    def _arm_idle_timer(self) -> None:
        self._idle_timer.cancel()
        if self._keep_alive_s:
            self._idle_timer.start(self._keep_alive_s)

    def _idle_over(self) -> None:
        if self._activities == 0:  # else the time begins again with the end of the last one
            self.request_close()
