"""A listener on loopback with scripted neighbours: router, session table, pump callbacks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from copy import copy
from typing import TYPE_CHECKING

from msgspec.structs import replace

from edgehub.clock import Clock, SystemClock
from edgehub.devices.identities import Identities, read_identity_list
from edgehub.errors import StoreError
from edgehub.heads.mqtt.context import ListenerContext
from edgehub.heads.mqtt.limits import ListenerLimits
from edgehub.heads.mqtt.listener import MqttListener
from edgehub.heads.mqtt.local.space import LocalSpace
from edgehub.heads.mqtt.local.tables import LocalContents, LocalEntry
from edgehub.heads.mqtt.session_table import StoredSession
from edgehub.heads.mqtt.topics import ClientTopic
from edgehub.mqtt.hub_path import HubPath
from edgehub.mqtt.property_bag import build_bag
from edgehub.settings import MqttSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from edgehub.heads.mqtt.connection import MqttConnection
    from edgehub.local_message import LocalMessage, Settle
    from edgehub.message import Message, Refusal, SendResult

HUB_ID = "hub"
LIMITS = set(ListenerLimits.__struct_fields__)
STORE_ID = "listenerhub2"


class ScriptedRouter:
    """Takes messages; settles them at once, or when told to, with or without a refusal."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.holding = False
        self.header = b""
        """Given to messages that have none, as the store does."""
        self.refusal: Refusal | None = None
        self.told: list[tuple[str, int, str]] = []
        self.pending: list[tuple[Callable[[int, Refusal | None], None], int]] = []
        self._arrived = asyncio.Event()

    def submit(
        self, message: Message, settle: Callable[[int, Refusal | None], None], token: int
    ) -> None:
        """See `edgehub.heads.head.Submit`."""
        message.header = message.header or self.header
        self.messages.append(message)
        self._arrived.set()
        if self.holding:
            self.pending.append((settle, token))
        else:
            settle(token, self.refusal)

    def refused(self, device: str, size: int, reason: str) -> None:
        """See `edgehub.heads.head.Refused`."""
        self.told.append((device, size, reason))

    def settle(self, *places: int, refusal: Refusal | None = None) -> None:
        """Settle held messages, all or those at `places`, in that order."""
        chosen = [self.pending[place] for place in places] if places else list(self.pending)
        self.pending = [held for held in self.pending if held not in chosen]
        for settle, token in chosen:
            settle(token, refusal)

    async def received(self, count: int) -> list[Message]:
        """Wait until `count` messages have come in."""
        while len(self.messages) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return self.messages


class MemorySessions:
    """A session table in memory.

    `failing` makes every write fail as a broken disk does; writes wait while `free` is not set.
    """

    def __init__(self) -> None:
        self.table: dict[str, dict[str, int]] = {}
        self.expiries: dict[str, tuple[int | None, bool]] = {}
        self.absent_s: dict[str, float] = {}
        self.numbers: dict[str, int] = {}
        self.received: set[tuple[int, int]] = set()
        self.failing = False
        self._writing = 0
        self._written = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()
        self.writes = 0

    async def load(self) -> dict[str, StoredSession]:
        """See `SessionTable`."""
        return {
            client_id: StoredSession(
                subscriptions=dict(filters),
                expiry_s=self.expiries.get(client_id, (None, False))[0],
                absent_s=self.absent_s.get(client_id),
                number=self.numbers.get(client_id, 0),
                received=tuple(
                    packet_id
                    for number, packet_id in sorted(self.received)
                    if number == self.numbers.get(client_id, 0)
                ),
            )
            for client_id, filters in self.table.items()
        }

    def save(
        self,
        client_id: str,
        subscriptions: Mapping[str, int],
        *,
        number: int,
        expiry_s: int | None,
        is_away: bool,
    ) -> asyncio.Future[None]:
        """See `SessionTable`."""
        filters = dict(subscriptions)

        def change() -> None:
            self.numbers[client_id] = number
            self.table[client_id] = filters
            self.expiries[client_id] = expiry_s, is_away

        return self._write(change)

    def delete(self, client_id: str) -> asyncio.Future[None]:
        """See `SessionTable`."""

        def change() -> None:
            self.table.pop(client_id, None)
            self.expiries.pop(client_id, None)
            self.numbers.pop(client_id, None)

        return self._write(change)

    def together(self) -> AbstractContextManager[object]:
        """See `SessionTable`."""
        return nullcontext()

    def receive(self, session: int, packet_id: int) -> asyncio.Future[None]:
        """See `SessionTable`."""
        return self._write(lambda: self.received.add((session, packet_id)))

    def release(self, session: int, packet_id: int) -> asyncio.Future[None]:
        """See `SessionTable`."""
        return self._write(lambda: self.received.discard((session, packet_id)))

    def forget(self, session: int) -> None:
        """See `SessionTable`."""
        self.received = {each for each in self.received if each[0] != session}

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        while self._writing:
            self._written.clear()
            await self._written.wait()

    def _write(self, change: Callable[[], object]) -> asyncio.Future[None]:
        self._writing += 1
        return asyncio.ensure_future(self._finish(change))

    async def _finish(self, change: Callable[[], object]) -> None:
        self.writes += 1
        await asyncio.sleep(0)
        await self.free.wait()
        self._writing -= 1
        self._written.set()
        if self.failing:
            msg = "disk full"
            raise StoreError(msg)
        change()


class MemoryLocal:
    """The tables of the local topic space in memory; `free` not set = nothing is durable yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.retained: dict[str, LocalMessage] = {}
        self.queued: dict[tuple[str, int], LocalEntry] = {}
        self.received: set[tuple[int, int]] = set()
        self.free = True
        self.waiting: list[Settle] = []
        self.changing: set[str] = set()
        # Nothing was removed since the last `flush_now`.
        self.hastened = True
        self._next = 1

    def now_ms(self) -> int:
        """See `LocalTable`."""
        return self._clock.boottime_ms()

    async def load(self) -> LocalContents:
        """See `LocalTable`."""
        queued: dict[str, list[LocalEntry]] = {}
        for (client_id, _), each in sorted(self.queued.items(), key=lambda item: item[0]):
            queued.setdefault(client_id, []).append(copy(each))
        return LocalContents(retained=list(self.retained.values()), queued=queued)

    def is_changing(self, topic: str) -> bool:
        """See `LocalTable`."""
        return topic in self.changing

    def keep(self, message: LocalMessage, settle: Settle) -> None:
        """See `LocalTable`."""
        if message.body:
            self.retained[message.topic] = message
        else:
            self.retained.pop(message.topic, None)
        if not self.free:
            self.changing.add(message.topic)
        self._settle(settle)

    def enqueue(self, client_id: str, entry: LocalEntry, settle: Settle) -> None:
        """See `LocalTable`."""
        message = entry.message
        if not message.id:
            message.id = self._next
            self._next += 1
        packet_id = entry.packet_id if entry.waits else 0
        self.queued[client_id, message.id] = replace(
            entry, share=None, packet_id=packet_id, is_stored=True, waits=False
        )
        self._settle(settle)

    def mark_sent(self, client_id: str, message: LocalMessage) -> None:
        """See `LocalTable`."""
        key = client_id, message.id
        self.queued[key] = replace(self.queued[key], is_sent=True)

    def mark_received(self, client_id: str, message: LocalMessage, settle: Settle) -> None:
        """See `LocalTable`."""
        key = client_id, message.id
        self.queued[key] = replace(self.queued[key], is_sent=True, is_received=True)
        self._settle(settle)

    def receive(self, session: int, packet_id: int, settle: Settle) -> None:
        """See `LocalTable`."""
        self.received.add((session, packet_id))
        self._settle(settle)

    def dequeue(self, client_id: str, message: LocalMessage) -> None:
        """See `LocalTable`."""
        del self.queued[client_id, message.id]
        self.hastened = False

    def flush_now(self) -> None:
        """See `LocalTable`."""
        self.hastened = True

    async def flush(self) -> None:
        """See `LocalTable`."""

    def commit(self) -> None:
        """Make durable what waits."""
        waiting, self.waiting = self.waiting, []
        self.changing.clear()
        for settle in waiting:
            settle(0, None)

    def _settle(self, settle: Settle) -> None:
        if self.free:
            settle(0, None)
        else:
            self.waiting.append(settle)


def a_space(clock: Clock) -> LocalSpace:
    """Build a local topic space in memory."""
    return LocalSpace(MqttSettings(), MemoryLocal(clock), clock, hub_id=HUB_ID, known={})


class _Collected:
    """Things in order of arrival."""

    def __init__(self) -> None:
        self.all: list = []
        self._arrived = asyncio.Event()

    def add(self, thing: object) -> None:
        """Take one."""
        self.all.append(thing)
        self._arrived.set()

    async def count(self, count: int) -> list:
        """Wait until there are `count`."""
        while len(self.all) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return self.all


class Results(_Collected):
    """Collects send results."""

    def settle(self, result: SendResult) -> None:
        """Take one."""
        self.add(result)

    @property
    def kinds(self) -> list:
        """Failure kinds so far, None = delivered."""
        return [result.kind for result in self.all]


class Changes(_Collected):
    """Collects the arguments with which watchers are called."""

    def __call__(self, *arguments: object) -> None:
        """Take one call."""
        self.add(arguments)


class Bench:
    """A running listener and its neighbours."""

    def __init__(self, listener: MqttListener, parts: dict) -> None:
        self.listener = listener
        self.router: ScriptedRouter = parts["router"]
        self.sessions: MemorySessions = parts["sessions"]
        self.identities: Identities = parts["identities"]
        self.interest: Changes = parts["interest"]
        self.link: dict[str, bool] = parts["link"]
        self.local: MemoryLocal = parts["local"]
        ports = {key: found[0][1] for key, found in listener.addresses.items()}
        self.port = ports["port"]
        self.tls_port = ports.get("tls_port", 0)
        self.ws_port = ports.get("ws_port", 0)
        self.wss_port = ports.get("wss_port", 0)

    def send(self, target: str, message: Message, settle: Callable[[SendResult], None]) -> None:
        """Send a message to a device or module."""
        bag = build_bag(message, sender=False)
        self.listener.send(target, bag, message, settle, topic=ClientTopic.MESSAGES)

    def connections(self) -> list[MqttConnection]:
        """Return the connections of signed-in clients."""
        return list(self.listener.context.sessions)

    def client_ids(self) -> list[str]:
        """Return the ids of signed-in clients."""
        return [each.client.id for each in self.connections()]

    def dropped(self) -> dict[str, int]:
        """Counts of dropped messages that are not zero."""
        return {k: v for k, v in self.listener.statistics().dropped.items() if v}

    def ended(self) -> dict[str, int]:
        """Counts of ended connections that are not zero."""
        return {k: v for k, v in self.listener.statistics().closed.items() if v}


def mqtt_settings(**options: object) -> MqttSettings:
    """Build the settings of a listener on free ports; the certificate is given to it apart."""
    settings = {name: value for name, value in options.items() if name not in LIMITS}
    return MqttSettings.model_construct(**{"port": 0, "tls_port": 0, **settings})


@asynccontextmanager
async def running(
    *,
    clock: Clock | None = None,
    identities_file: Path | None = None,
    sessions: MemorySessions | None = None,
    local: MemoryLocal | None = None,
    tls: ssl.SSLContext | None = None,
    **options: object,
) -> AsyncIterator[Bench]:
    """Run a listener on a free loopback port; keywords are settings and `ListenerLimits`."""
    clock = clock or SystemClock()
    parts = {
        "local": local or MemoryLocal(clock),
        "router": ScriptedRouter(),
        "sessions": sessions or MemorySessions(),
        "identities": Identities(lambda: clock.wall_ms() / 1000 if clock.synchronized() else None),
        "interest": Changes(),
        "link": {"up": True},
    }
    parts["identities"].apply(read_identity_list(identities_file))
    settings = mqtt_settings(**options)
    context = ListenerContext(
        settings,
        ListenerLimits(**{name: options[name] for name in LIMITS & options.keys()}),
        clock=clock,
        submit=parts["router"].submit,
        space=LocalSpace(
            settings,
            parts["local"],
            clock,
            hub_id=HUB_ID,
            known=parts["identities"],
        ),
        identities=parts["identities"],
        link_up=lambda: parts["link"]["up"],
        refused=parts["router"].refused,
        hub_path=HubPath(STORE_ID),
        session_store=parts["sessions"],
    )
    listener = MqttListener(context, offer=parts["router"].submit, tls=tls)
    listener.follow(ClientTopic.MESSAGES, parts["interest"])
    await listener.open()
    bench = Bench(listener, parts)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(listener.run())
        try:
            yield bench
        finally:
            await listener.close()
            task.cancel()
            parts["identities"].close()
