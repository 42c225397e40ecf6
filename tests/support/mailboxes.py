"""Mailboxes with a table in memory, and a client that does what the test says."""

from __future__ import annotations

import asyncio

from edgehub.clock import ManualClock
from edgehub.device_bound.mailboxes import Mailboxes
from edgehub.device_bound.message import ACK_PROPERTY, Origin
from edgehub.devices.request_queues import RequestQueues
from edgehub.errors import StoreError
from edgehub.message import DEFAULT_PRIORITY
from edgehub.settings.device_bound import DeviceBoundSettings


class MemoryTable:
    """Keeps messages as the table on disk does; writes are durable at once, or when told to."""

    def __init__(self) -> None:
        self.rows = {}
        self.held = None
        self.is_closed = False

    async def load(self):
        """Return what is stored."""
        return [self.rows[number] for number in sorted(self.rows)]

    def add(self, message):
        """Store a message."""
        message.header()
        self.rows[message.number] = message
        return self._future()

    def update(self, message):
        """Do nothing: messages are shared with the caller."""

    def remove(self, message):
        """Remove a message."""
        del self.rows[message.number]
        return self._future()

    def _future(self):
        future = asyncio.get_running_loop().create_future()
        if self.is_closed:
            future.set_exception(StoreError("the store is closed"))
        elif self.held is None:
            future.set_result(None)
        else:
            self.held.append(future)
        return future


class MailboxBench:
    """Mailboxes with a client that does what the test says."""

    def __init__(self, table=None, clock=None, **options) -> None:
        self.clock = clock or ManualClock()
        self.table = table or MemoryTable()
        self.queues = RequestQueues(self.clock)
        self.sent, self.reports = [], []
        self.mailboxes = Mailboxes(
            self.table,
            DeviceBoundSettings.model_construct(**{"bytes_max": 2**20, **options}),
            clock=self.clock,
            now_ms=self.clock.boottime_ms,
            utc_ms=lambda hub_ms: hub_ms,
            new_id=lambda: "made",
            queues=self.queues,
            send=self._send,
            report=lambda message, fate, _: self.reports.append((message.message_id, fate)),
        )

    def _send(self, target, bag, message, settle, *, dup, written) -> None:
        del bag
        written()
        self.sent.append((target, message.body, dup, settle))

    async def put(self, body, target="d", *, priority=DEFAULT_PRIORITY, ack=None, **options):
        """Accept a message, and wait until it is durable and has left if it may."""
        properties = {} if ack is None else {ACK_PROPERTY: ack}
        message, stored = self.mailboxes.accept(
            target,
            body,
            properties,
            {"messageId": body.decode()},
            origin=Origin.API,
            priority=priority,
            **options,
        )
        await stored
        await asyncio.sleep(0)
        return message

    async def listen(self, target="d"):
        """Have a client listen, and wait until it has what it may get."""
        self.mailboxes.listening(target, True)
        await asyncio.sleep(0)

    @property
    def bodies(self):
        """Return what was sent, in order."""
        return [body for _, body, _, _ in self.sent]

    def settle(self, result, at=-1):
        """Answer for what was sent."""
        self.sent[at][3](result)

    @property
    def ended(self):
        """Return the fates that were counted."""
        counts = self.mailboxes.statistics().ended_total
        return {fate: count for fate, count in counts.items() if count}
