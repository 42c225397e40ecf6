"""The store's interface for the journal: events other than those of rows, and the stored blobs.

Invariant: the journal's position is stored in the transaction that deletes the blobs before it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from edgehub.journal.row_events import PUMP_PAUSED, PUMP_UNSERVED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.message import EndpointId, Priority
    from edgehub.store.database import Database
    from edgehub.store.event_log import Depth, EventLog
    from edgehub.store.writer import Writer

_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class JournalFeed:
    """Implements the journal's `EventSource` and the pump's `PumpListener`.

    Attributes:
        store_id: Id of the database file, 16 hex digits.
        message_prefix: Prefix of message ids, before the offset.
    """

    def __init__(
        self, events: EventLog, writer: Writer, database: Database, *, store_id: str
    ) -> None:
        self._events = events
        self._writer = writer
        self._database = database
        self._links: dict[EndpointId, int] = {}
        self._forgetting: asyncio.Future[None] | None = None
        """Done once memory equals the file after the last `forget`."""
        self.store_id = hex_store_id(store_id)
        self.message_prefix = f"{store_id}-"

    def begin(
        self,
        last: tuple[int, int] | None,
        depths: list[Depth],
        *,
        lost: list[Depth] | None,
        relations: list[list[int]] | None,
    ) -> None:
        """Record the start of the hub.

        Args:
            last: Hub time and UTC of the last run's last commit, None = this is the first run.
            depths: Rows and bytes in the file, by queue.
            lost: Rows and bytes lost by damage since, None = there was none.
            relations: See `Boot.relations`, None = the clock is not trusted.
        """
        self._events.note(["start", *(last or (0, 0)), depths])
        if lost is not None:
            self._events.note(["lost", lost])
        if relations is not None:
            self._events.note(["trusted", relations])
        self._writer.commit_events()

    def end(self) -> None:
        """Record an orderly stop of the hub, after the events of all that was handed in.

        Rows do not change any more after it, so background work stops.
        """
        self._writer.hold_jobs()
        self._events.note(["stop"])
        self._writer.commit_events()

    def passed_midnight(self) -> None:
        """Record that the date has changed, so that a commit begins the new day."""
        self._events.note(["tick"])
        self._writer.commit_events()

    def refused(self, device: str, size: int, reason: str) -> None:
        """Count a message that a head refused.

        Args:
            device: Its sender.
            size: Bytes of its body.
            reason: Why; one of a few texts.
        """
        self._events.refused(device.encode("utf-8", "replace").decode(), size, reason)

    def record_refused(self) -> None:
        """Commit the counts of refused messages, if there are any."""
        if self._events.has_refused:
            self._writer.commit_events()

    def pump_changed(self, endpoint_id: EndpointId, state: int) -> None:
        """Record the state of a pump from now on; see `PUMP_OFFLINE` and the others."""
        self._events.note(["pump", endpoint_id, self._events.hub_time.now_ms(), state])
        link = min(state, PUMP_PAUSED)
        if self._links.get(endpoint_id) != link:
            self._links[endpoint_id] = link
            self._writer.commit_events()

    def endpoint_unserved(self, endpoint_id: EndpointId) -> None:
        """Record that an endpoint has no pump, until one changes its state."""
        if self._links.get(endpoint_id) != PUMP_UNSERVED:
            self.pump_changed(endpoint_id, PUMP_UNSERVED)

    def queue_delayed(self, endpoint_id: EndpointId, priority: Priority, delayed: bool) -> None:
        """Record that a whole queue is held back after a refusal, or not any more."""
        now_ms = self._events.hub_time.now_ms()
        self._events.note(["delay", endpoint_id, priority, now_ms, int(delayed)])

    def link_traffic(self, endpoint_id: EndpointId, size: int, ago_s: float) -> None:
        """Record the bytes handed to a link in the minute that began `ago_s` seconds ago."""
        begun_ms = self._events.hub_time.now_ms() - int(ago_s * 1000)
        self._events.note(["traffic", endpoint_id, begun_ms, size])

    def settings(self, members: Mapping[str, Any]) -> None:
        """Record the settings in force from now on; see the line `settings` of the journal."""
        self._events.note(["settings", self._events.hub_time.now_ms(), members])
        self._writer.commit_events()

    @property
    def state(self) -> bytes | None:
        """The journal's state of the last `forget`, None = there is none yet."""
        return self._events.state

    @property
    def bytes_waiting(self) -> int:
        """Bytes of blobs that wait."""
        return self._events.bytes

    @property
    def recorded_total(self) -> int:
        """Events of rows written since the start."""
        return self._events.recorded_total

    @property
    def waiting_ms(self) -> int:
        """Milliseconds for which the oldest blob has waited, 0 = there is none."""
        oldest_ms = self._events.oldest_ms
        return 0 if oldest_ms is None else max(0, self._events.hub_time.now_ms() - oldest_ms)

    @property
    def clock_trusted(self) -> bool:
        """Whether UTC is known to be right."""
        return self._events.clock_trusted

    def hub_now_ms(self) -> int:
        """Return hub time."""
        return self._events.hub_time.now_ms()

    def utc_now_ms(self) -> int:
        """Return the best known UTC."""
        return self._events.utc_now_ms()

    async def read(self) -> list[tuple[int, bytes]]:
        """Read some of the oldest blobs with their numbers; empty = there are no more.

        Raises:
            StoreError: The disk or a lock prevents it, or the file is damaged.
        """
        return await self._database.run(self._events.read())

    async def forget(self, number: int, state: bytes, written_ms: int) -> None:
        """Delete the blobs up to `number`, and store `state`.

        Args:
            number: Of the last commit whose lines are on disk.
            state: From which the journal goes on.
            written_ms: Hub time of that commit.

        Raises:
            StoreError: The store is closed.
        """
        committing = self._writer.transact(self._events.forget(number, state))
        forgetting = self._forgetting = asyncio.get_running_loop().create_future()

        def note(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._events.forgotten(done.result(), state, written_ms)
            forgetting.set_result(None)

        # Also where the caller is cancelled: memory equals the file.
        committing.add_done_callback(note)
        await asyncio.shield(committing)

    async def settled(self) -> None:
        """Wait for the transaction of a `forget` whose caller may have been cancelled."""
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])


def hex_store_id(store_id: str) -> str:
    """Write the store's id, the first half of its message ids, as 16 hex digits."""
    number = 0
    for letter in store_id:
        number = number * 32 + _BASE32.index(letter)
    return f"{number:016x}"
