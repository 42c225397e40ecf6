"""Messages held for entities that are not registered: bounded, on disk, and limited in time.

Owns held messages and the order of their arrival. Telemetry is bounded per entity or in all, the
oldest is evicted; of other messages the newest of each topic is kept; all together are bounded by
number, by bytes and by bytes per client. At a bound over all the oldest telemetry of the client
with most is evicted first; if anonymous clients have used their half, one of them is chosen.
Invariant: every held message has a row in the table `pending`, which has no others. Rules:
docs/reference/entities.md.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from edgehub.devices.bounds import Bound
from edgehub.entities.effects import Instant
from edgehub.entities.held import HELD_BYTES, ClientShares, HeldMessage
from edgehub.entities.tables import EntityTable
from edgehub.entities.topics import TELEMETRY, Channel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.devices.bounds import KnownIds
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.tables import PendingRow
    from edgehub.entities.topics import EntityTopic, TopicScheme


SHOWN_MAX: Final = 1000
"""Entities that are listed at once."""


class PendingEntity(Struct, frozen=True, kw_only=True):
    """The messages held for one unregistered entity.

    Attributes:
        topic_id: The entity.
        waits_for: Topic id of the missing parent, None = its registration is missing.
        clients: Their senders.
        messages: Messages held.
        bytes: Bytes held.
        oldest_ms: Hub time at which the oldest of them arrived.
        evicted: Messages evicted so far.
    """

    topic_id: str
    waits_for: str | None
    clients: tuple[str, ...]
    messages: int
    bytes: int
    oldest_ms: int
    evicted: int


class _Entry(Struct, eq=False):
    bytes: int = 0
    registration: HeldMessage | None = None
    parent: str | None = None
    state: dict[str, HeldMessage] = field(default_factory=dict)
    telemetry: OrderedDict[int, HeldMessage] = field(default_factory=OrderedDict)
    evicted: int = 0
    reported: bool = False

    def held(self) -> list[HeldMessage]:
        own = [] if self.registration is None else [self.registration]
        return [*own, *self.state.values(), *self.telemetry.values()]


class Pending:
    """The held messages of all unregistered entities."""

    def __init__(
        self,
        options: MapperOptions,
        effects: EffectCollector,
        scheme: TopicScheme,
        stored: Iterable[PendingRow],
        *,
        known: KnownIds,
        hub_id: str,
    ) -> None:
        self._settings = options.entities
        self._ttl_ms = options.entities.pending_ttl_s * 1000
        self._effects = effects
        self._entries: dict[str, _Entry] = {}
        self._waiting: dict[str, dict[str, None]] = {}
        # By whether their clients are anonymous.
        self._shares = {False: ClientShares(), True: ClientShares()}
        self._count = Bound("held messages", options.entities.pending_max, known, own=hub_id)
        self._bytes = Bound("held bytes", options.entities.pending_bytes_max, known, own=hub_id)
        self._all: OrderedDict[int, HeldMessage] = OrderedDict()
        self._telemetry: OrderedDict[int, HeldMessage] = OrderedDict()
        self._loaded_alarms: dict[str, bytes] = {}
        self._next_seq = 1
        self.evicted_total = 0
        self.expired_total = 0
        for row in stored:
            self._load(scheme, row)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all held messages."""
        return self._bytes.used

    def hold(self, topic: EntityTopic, payload: bytes, client: str, now: Instant) -> None:
        """Hold a message of an unregistered entity."""
        if topic.channel in TELEMETRY:
            self._hold_telemetry(topic, payload, client, now)
            return
        entry = self._entries.get(topic.topic_id)
        if entry is not None and topic.text in entry.state:
            self._drop(entry.state[topic.text])
        # An empty message clears its topic; only an empty status has a meaning.
        clears = not payload and topic.channel is not Channel.HEALTH
        if not clears and self._make_room(topic, payload, client):
            self._add(self._new(topic, payload, client, now))

    def has(self, topic: EntityTopic, payload: bytes) -> bool:
        """Return whether this state, or this registration, is held."""
        entry = self._entries.get(topic.topic_id)
        if entry is None:
            return False
        is_registration = topic.channel is Channel.REGISTRATION
        held = entry.registration if is_registration else entry.state.get(topic.text)
        return held is not None and held.payload == payload

    def wait(
        self, topic: EntityTopic, payload: bytes, client: str, now: Instant, *, parent: str
    ) -> None:
        """Hold a registration until its parent is registered; the newest of an entity counts."""
        topic_id = topic.topic_id
        keeps_place = self.waits_for(topic_id) == parent
        self.drop_registration(topic_id, keeps_place=keeps_place)
        if self._make_room(topic, payload, client):
            self._add(self._new(topic, payload, client, now))
            self.name_parent(topic_id, parent)
        elif keeps_place:
            self._leave_place(topic_id, parent)

    def waits_for(self, topic_id: str) -> str | None:
        """Return the missing parent of an entity whose registration is held, None = none is."""
        entry = self._entries.get(topic_id)
        return None if entry is None else entry.parent

    def loaded_registrations(self) -> list[HeldMessage]:
        """Return the held registrations that came from the tables; their parents are not known."""
        loaded = [
            entry.registration
            for entry in self._entries.values()
            if entry.registration is not None and entry.parent is None
        ]
        return sorted(loaded, key=lambda held: held.seq)

    def name_parent(self, topic_id: str, parent: str) -> None:
        """Record the parent for which a registration from the tables waits."""
        self._entries[topic_id].parent = parent
        self._waiting.setdefault(parent, {})[topic_id] = None

    def drop_registration(self, topic_id: str, *, keeps_place: bool = False) -> None:
        """Remove a held registration; other messages of the entity stay held."""
        entry = self._entries.get(topic_id)
        if entry is not None and entry.registration is not None:
            self._drop(entry.registration, keeps_place=keeps_place)

    def holds(self, topic: EntityTopic) -> bool:
        """Return whether a telemetry message of that topic is held."""
        entry = self._entries.get(topic.topic_id)
        return entry is not None and any(
            held.topic.text == topic.text for held in entry.telemetry.values()
        )

    def take(self, topic_id: str) -> list[HeldMessage]:
        """Remove and return the messages of an entity: newest states by arrival, then telemetry."""
        entry = self._entries.get(topic_id)
        if entry is None:
            return []
        state = sorted(entry.state.values(), key=lambda held: held.seq)
        taken = [*state, *entry.telemetry.values()]
        for held in taken:
            self._drop(held)
        return taken

    def take_children(self, topic_id: str) -> list[HeldMessage]:
        """Remove and return the registrations that wait for an entity, in order of arrival."""
        children = []
        for child in list(self._waiting.get(topic_id, ())):
            registration = self._entries[child].registration
            assert registration is not None, child
            children.append(registration)
            self._drop(registration)
        return children

    def expire(self, now: Instant) -> None:
        """Drop messages that have waited too long; one error per entity."""
        limit_ms = now.hub_ms - self._ttl_ms
        while self._all:
            held = next(iter(self._all.values()))
            if held.at.hub_ms > limit_ms:
                return
            topic_id = held.topic.topic_id
            entry = self._entries[topic_id]
            if not entry.reported:
                entry.reported = True
                self._effects.error(
                    held.topic.text,
                    f"{topic_id} was not registered within"
                    f" {self._settings.pending_ttl_s} s; what it sent before is dropped",
                )
            self.expired_total += 1
            self._drop(held)

    def next_due_ms(self) -> int | None:
        """Return the hub time at which the next message expires, None = none is held."""
        oldest_ms = self.oldest_ms()
        return None if oldest_ms is None else oldest_ms + self._ttl_ms

    def oldest_ms(self) -> int | None:
        """Return the hub time at which the oldest held message arrived, None = nothing is held."""
        return next(iter(self._all.values())).at.hub_ms if self._all else None

    @property
    def entities_total(self) -> int:
        """Return the number of entities with held messages."""
        return len(self._entries)

    def entities(self, limit: int = SHOWN_MAX) -> list[PendingEntity]:
        """Return up to `limit` entities with held messages, most bytes first, then by topic id."""
        largest = heapq.nsmallest(
            limit, self._entries.items(), key=lambda item: (-item[1].bytes, item[0])
        )
        return [_described(topic_id, entry) for topic_id, entry in largest]

    def _hold_telemetry(
        self, topic: EntityTopic, payload: bytes, client: str, now: Instant
    ) -> None:
        known = self._loaded_alarms.pop(topic.text, None) if self._loaded_alarms else None
        if known is not None and known == payload:
            return  # held since before the restart, and only delivered again
        ring: OrderedDict[int, HeldMessage] | None = self._telemetry
        if self._settings.telemetry_cache_scope == "entity":
            entry = self._entries.get(topic.topic_id)
            ring = None if entry is None else entry.telemetry
        if ring and len(ring) >= self._settings.telemetry_cache_size:
            self._evict(next(iter(ring.values())))
        if not self._settings.telemetry_cache_size:
            self.evicted_total += 1
        elif self._make_room(topic, payload, client):
            self._add(self._new(topic, payload, client, now))

    def _new(self, topic: EntityTopic, payload: bytes, client: str, now: Instant) -> HeldMessage:
        anonymous = self._count.is_anonymous(client)
        held = HeldMessage(self._next_seq, topic, payload, client, now, anonymous=anonymous)
        self._next_seq += 1
        self._effects.change(
            EntityTable.PENDING, (held.seq,), (topic.text, payload, client, now.hub_ms, now.wall_ms)
        )
        return held

    def _make_room(self, topic: EntityTopic, payload: bytes, client: str) -> bool:
        bytes_max = self._settings.pending_client_bytes_max
        size = HELD_BYTES + len(topic.text) + len(payload)
        if size > bytes_max:
            self.evicted_total += 1
            self._effects.error(
                topic.text, f"{topic.topic_id} is not registered and {size} bytes cannot be held"
            )
            return False
        anonymous = self._count.is_anonymous(client)
        share = self._shares[anonymous].get(client)
        while share is not None and len(share) and share.bytes + size > bytes_max:
            self._evict(share.oldest())
        while shares := self._over(self._count, 1, anonymous=anonymous):
            self._evict(max([each.most_messages() for each in shares], key=len).oldest())
        while shares := self._over(self._bytes, size, anonymous=anonymous):
            most = max([each.most_bytes() for each in shares], key=lambda share: share.bytes)
            self._evict(most.oldest())
        return True

    def _over(self, bound: Bound, more: int, *, anonymous: bool) -> list[ClientShares]:
        """Return the shares of which one has to evict for so much more; empty = none has to."""
        mine = self._shares[True]
        if anonymous and len(mine) and bound.anonymous.used + more > bound.anonymous_limit:
            return [mine]
        if bound.used + more > bound.limit:
            return [shares for shares in self._shares.values() if len(shares)]
        return []

    def _evict(self, held: HeldMessage) -> None:
        entry = self._entries[held.topic.topic_id]
        entry.evicted += 1
        self.evicted_total += 1
        if held is entry.registration:
            self._effects.error(
                held.topic.text,
                f"the registration waits for {entry.parent} and had to make room; send it again"
                " once the parent is registered",
            )
        self._drop(held)

    def _add(self, held: HeldMessage) -> None:
        topic = held.topic
        entry = self._entries.get(topic.topic_id)
        if entry is None:
            entry = self._entries[topic.topic_id] = _Entry()
        is_telemetry = topic.channel in TELEMETRY
        if is_telemetry:
            entry.telemetry[held.seq] = self._telemetry[held.seq] = held
        elif topic.channel is Channel.REGISTRATION:
            entry.registration = held
        else:
            entry.state[topic.text] = held
        self._shares[held.anonymous].add(held, is_telemetry=is_telemetry)
        for bound, number in ((self._count, 1), (self._bytes, held.size)):
            bound.of_kind(anonymous=held.anonymous).used += number
        self._all[held.seq] = held
        entry.bytes += held.size

    def _drop(self, held: HeldMessage, *, keeps_place: bool = False) -> None:
        topic = held.topic
        entry = self._entries[topic.topic_id]
        is_telemetry = topic.channel in TELEMETRY
        if is_telemetry:
            del entry.telemetry[held.seq], self._telemetry[held.seq]
        elif held is entry.registration:
            self._leave_parent(topic.topic_id, entry, keeps_place=keeps_place)
        else:
            del entry.state[topic.text]
        self._shares[held.anonymous].drop(held, is_telemetry=is_telemetry)
        for bound, number in ((self._count, 1), (self._bytes, held.size)):
            bound.of_kind(anonymous=held.anonymous).used -= number
        del self._all[held.seq]
        entry.bytes -= held.size
        if entry.registration is None and not entry.state and not entry.telemetry:
            del self._entries[topic.topic_id]
        self._effects.change(EntityTable.PENDING, (held.seq,), None)

    def _leave_parent(self, topic_id: str, entry: _Entry, *, keeps_place: bool) -> None:
        parent, entry.parent, entry.registration = entry.parent, None, None
        assert parent is not None, topic_id
        if not keeps_place:
            self._leave_place(topic_id, parent)

    def _leave_place(self, topic_id: str, parent: str) -> None:
        siblings = self._waiting[parent]
        del siblings[topic_id]
        if not siblings:
            del self._waiting[parent]

    def _load(self, scheme: TopicScheme, row: PendingRow) -> None:
        topic = scheme.parse(row.topic)
        if topic is None:
            # The root of the topics was changed since; nothing can be registered below the old one.
            self._effects.change(EntityTable.PENDING, (row.seq,), None)
            return
        at = Instant(row.hub_ms, row.wall_ms)
        anonymous = self._count.is_anonymous(row.client_id)
        self._add(HeldMessage(row.seq, topic, row.payload, row.client_id, at, anonymous=anonymous))
        self._next_seq = max(self._next_seq, row.seq + 1)
        if topic.channel is Channel.ALARM:
            self._loaded_alarms[topic.text] = row.payload


def _described(topic_id: str, entry: _Entry) -> PendingEntity:
    held = entry.held()
    return PendingEntity(
        topic_id=topic_id,
        waits_for=entry.parent,
        clients=tuple(sorted({message.client for message in held})),
        messages=len(held),
        bytes=entry.bytes,
        oldest_ms=min([message.at.hub_ms for message in held]),
        evicted=entry.evicted,
    )
