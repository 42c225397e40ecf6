"""The mapper: converts messages, one at a time, into effects.

Owns the order in which its parts see messages and time. It does no I/O and has no timer: its caller
passes messages and moments, carries out the effects, rows and changes of one message in one
transaction, and acknowledges the message after that commit. Messages that the mapper publishes
itself need not be passed back; it does no harm.

Invariants: the creation of an entity leaves before anything else about it, parents before children;
a message that cannot be used becomes an error and stops no other; what is acknowledged is in the
tables. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from edgehub.entities import smartrest
from edgehub.entities.alarms import Alarms
from edgehub.entities.availability import Heartbeats
from edgehub.entities.capabilities import SOFTWARE_UPDATE, Capabilities
from edgehub.entities.cloud_operations import CloudOperations
from edgehub.entities.commands import Commands
from edgehub.entities.documents import read_json
from edgehub.entities.effect_collector import EffectCollector
from edgehub.entities.effects import OutputName
from edgehub.entities.entity import EntityType
from edgehub.entities.events import EventMessage
from edgehub.entities.faults import MappingError
from edgehub.entities.health import UP, ServiceHealth, read_status
from edgehub.entities.measurements import convert_measurement
from edgehub.entities.pending import Pending
from edgehub.entities.registrar import Registrar
from edgehub.entities.registry import EntityRegistry
from edgehub.entities.statistics import MapperStatistics
from edgehub.entities.topics import (
    ALARM_JOURNAL,
    AUTO_REGISTERING,
    STATE,
    TELEMETRY,
    Channel,
    TopicScheme,
    default_name,
)
from edgehub.entities.twins import set_twin
from edgehub.entities.units import UnitTable
from edgehub.mqtt.topic_filter import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from edgehub.devices.bounds import KnownIds
    from edgehub.entities.effects import Effect, Instant
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.tables import EntityContents
    from edgehub.entities.topics import EntityTopic

    Converter = Callable[[EntityTopic, Entity, bytes, Instant], None]

GET_OPERATIONS: Final = "500"
SYNC: Final = "sync"
CLEARED_MAX: Final = 1000
"""Topics that the hub has cleared itself, remembered until a broker returns the message."""
PAYLOAD_PACKETS_MAX: Final = 4
"""Packets of the cloud whose size a message may have; blanks and escapes take three in four."""

_ALWAYS_TAKEN: Final = frozenset({Channel.CAPABILITY, Channel.COMMAND, Channel.SIGNAL})
_HELD: Final = TELEMETRY | STATE
_NO_IDENTITIES: Final[Mapping[str, object]] = MappingProxyType({})
_ANY_SIZE: Final = frozenset({Channel.EVENT, Channel.COMMAND})
"""Large events go another way, and what a command reports may take several packets."""


class Mapper:
    """Entities and conversion for one cloud connection.

    Args:
        options: What can be set.
        stored: What the tables hold; read before the first message.
        retained: Returns the local topics with a retained message that match a filter.
        known: The identities in force.
        hub_id: Client id of the hub's own messages, and those of a broker.
    """

    def __init__(
        self,
        options: MapperOptions,
        stored: EntityContents,
        *,
        retained: Callable[[str], Iterable[str]] = lambda _topic_filter: (),
        known: KnownIds = _NO_IDENTITIES,
        hub_id: str = "",
    ) -> None:
        state = dict(stored.state)
        self._options = options
        self._retained = retained
        self._scheme = TopicScheme(options.mapper.topic_root)
        self._effects = EffectCollector(options)
        self.registry = EntityRegistry(options, self._effects, stored)
        self.pending = Pending(
            options, self._effects, self._scheme, stored.pending, known=known, hub_id=hub_id
        )
        self._units = UnitTable(options, self._effects, state)
        self._alarms = Alarms(options, self._effects, state)
        self._capabilities = Capabilities(options, self._effects, state)
        self._commands = Commands(
            options, self._effects, self._scheme, state, set_twin=self._set_twin
        )
        self._cloud_operations = CloudOperations(
            options, self._effects, self.registry, self._commands
        )
        self._heartbeats = Heartbeats(options, self._effects, self.registry, state)
        self._services = ServiceHealth(options, self._effects, self.registry)
        self._registrar = Registrar(
            options,
            self.registry,
            self.pending,
            self._effects,
            self._scheme,
            registered=self._watch_new,
            release=self._release,
        )
        self._own_service = f"tedge-mapper-{options.mapper.topic_prefix}"
        self._cleared: dict[str, None] = {}
        self._handled_total = 0
        self._ignored_total = 0
        self._large_events_total = 0
        self._converters: dict[Channel, Converter] = {
            Channel.MEASUREMENT: self._measurement,
            Channel.MEASUREMENT_META: self._measurement_meta,
            Channel.EVENT: self._event,
            Channel.ALARM: self._alarms.handle,
            Channel.TWIN: self._twin,
            Channel.HEALTH: self._health,
            Channel.CAPABILITY: self._capability,
            Channel.COMMAND: self._commands.handle,
        }

    def start(self, now: Instant) -> list[Effect]:
        """Send the operations of the main device to the cloud, and ask for pending ones.

        Retained messages of the local topics and of the alarms' journal are to be passed next, as
        a broker does after a subscription.
        """
        self._alarms.start(now)
        self._capabilities.send(self.registry.main)
        self._ask_for_operations()
        for entity in list(self.registry.all()):
            is_main = entity.type is EntityType.MAIN
            self._heartbeats.watch(entity, now, announce=is_main)
        self._registrar.resume(now)
        return self._effects.take()

    def handle(self, topic: str, payload: bytes, now: Instant, *, client: str = "") -> list[Effect]:
        """Handle one message.

        Args:
            topic: Its topic.
            payload: Its payload.
            now: When it came.
            client: Its sender, empty = not known; what is held of one client is bounded.
        """
        self._handled_total += 1
        parsed = self._scheme.parse(topic)
        if parsed is None:
            self._handle_other(topic, payload, now)
        elif self._is_taken(parsed):
            try:
                self._handle_entity(parsed, payload, client, now)
            except MappingError as error:
                self._effects.error(topic, str(error))
        else:
            self._ignored_total += 1
        return self._effects.take()

    def redeliver(self, topic: str, payload: bytes, now: Instant, *, client: str) -> list[Effect]:
        """Handle a retained message at the start, except telemetry, which was handled before."""
        parsed = self._scheme.parse(topic)
        if parsed is not None and parsed.channel in {Channel.MEASUREMENT, Channel.EVENT}:
            return []
        if self._alarms.knows(topic, payload):
            return []
        self._registrar.redelivered = self._services.redelivered = True
        try:
            return self.handle(topic, payload, now, client=client)
        finally:
            self._registrar.redelivered = self._services.redelivered = False

    def tick(self, now: Instant) -> list[Effect]:
        """Compare alarms, send heartbeats and expire held messages that are due."""
        gathers_until_ms = self._alarms.gathers_until_ms
        if gathers_until_ms is not None and gathers_until_ms <= now.hub_ms:
            self._compare_alarms(now)
        self._heartbeats.beat(now)
        self.pending.expire(now)
        self._commands.sweep(now)
        return self._effects.take()

    def next_due_ms(self) -> int | None:
        """Return the hub time at which `tick` has something to do, None = nothing is due."""
        due = [
            self._alarms.gathers_until_ms,
            self._heartbeats.next_due_ms(),
            self.pending.next_due_ms(),
            self._commands.next_due_ms(),
        ]
        return min((time for time in due if time is not None), default=None)

    def creation_refused(self, topic_id: str, reason: str = "") -> list[Effect]:
        """Record that the create line of an entity is a dead letter: it is not announced.

        Its next registration message announces it again; with a reason an error is published.
        """
        self._registrar.creation_refused(topic_id)
        if reason:
            self._effects.error(
                self.topic(topic_id),
                f"the entity could not be created at the cloud: {reason}; its messages wait until"
                " it is registered again",
            )
        return self._effects.take()

    def creation_confirmed(self, topic_id: str) -> list[Effect]:
        """Record that the cloud has an entity, also one that it had refused before."""
        self._registrar.creation_confirmed(topic_id)
        return self._effects.take()

    def register(
        self, topic_id: str, payload: bytes, now: Instant, *, client: str
    ) -> tuple[list[Effect], MappingError | None]:
        """Handle a registration, or with an empty payload a deregistration, of an operator.

        Returns:
            Its effects, and why it was refused; None = it was not.
        """
        self._handled_total += 1
        topic = self._scheme.parse(self.topic(topic_id))
        assert topic is not None, topic_id
        error = None
        try:
            self._handle_registration(topic, payload, client, now)
        except MappingError as refusal:
            error = refusal
        return self._effects.take(), error

    def forget_unpublished(self, retained: Collection[str]) -> list[Effect]:
        """Remove commands that were stored and not published, because the hub was killed.

        The cloud is asked for its operations at the start; known ones are not started again.

        Args:
            retained: All topics that are retained.
        """
        self._commands.forget_unpublished(retained)
        return self._effects.take()

    def concerns(self, topic: str) -> bool:
        """Return whether messages on a topic can have effects."""
        is_scheme = self._scheme.parse(topic) is not None
        is_own = topic == self._effects.cloud.notifications or topic.startswith(ALARM_JOURNAL)
        return is_scheme or is_own

    def is_telemetry(self, topic: str) -> bool:
        """Return whether a topic is one of measurements, events or alarms."""
        parsed = self._scheme.parse(topic)
        return parsed is not None and parsed.channel in TELEMETRY

    def topic(self, topic_id: str) -> str:
        """Return the topic of an entity's registration."""
        return self._scheme.topic(topic_id)

    @property
    def kept_bytes(self) -> int:
        """Return the approximate bytes in its tables."""
        held = self.pending.held_bytes + self._alarms.kept_bytes + self._units.bytes
        return held + self.registry.kept_bytes

    def statistics(self) -> MapperStatistics:
        """Return a snapshot."""
        effects = self._effects
        return MapperStatistics(
            handled_total=self._handled_total,
            ignored_total=self._ignored_total + self._cloud_operations.ignored_total,
            errors_total=effects.errors_total,
            newest_error=effects.newest_error,
            large_events_total=self._large_events_total,
            outputs_total={name: effects.outputs_total[name] for name in OutputName},
            entities=len(self.registry),
            held=len(self.pending),
            held_bytes=self.pending.held_bytes,
            evicted_total=self.pending.evicted_total,
            expired_total=self.pending.expired_total,
            dropped_total=effects.dropped_total,
            warnings=dict(self._registrar.warnings),
        )

    def _is_taken(self, topic: EntityTopic) -> bool:
        filters = self._options.mapper.topics
        return (
            not filters
            or topic.channel in _ALWAYS_TAKEN
            or any(matches(wanted, topic.text) for wanted in filters)
        )

    def _handle_other(self, topic: str, payload: bytes, now: Instant) -> None:
        if topic == self._effects.cloud.notifications:
            self._cloud_operations.handle(topic, payload, now)
        elif topic.startswith(ALARM_JOURNAL):
            self._alarms.handle_journal(topic, payload)
        else:
            self._ignored_total += 1

    def _handle_entity(self, topic: EntityTopic, payload: bytes, client: str, now: Instant) -> None:
        channel = topic.channel
        if channel is Channel.REGISTRATION:
            self._check_payload(channel, payload)
            self._handle_registration(topic, payload, client, now)
            return
        if channel is Channel.SIGNAL:
            self._handle_signal(topic)
            return
        if channel is Channel.HEALTH:
            is_up = read_status(topic.topic_id, payload) == UP
            self._heartbeats.record_health(topic.topic_id, is_up=is_up)
        self._check_payload(channel, payload)
        entity = self.registry.get(topic.topic_id)
        is_first_sign = entity is None and payload and channel in AUTO_REGISTERING
        if is_first_sign and self._options.entities.auto_register:
            entity = self._register_automatically(topic, now)
        if entity is not None:
            self._convert(topic, entity, payload, now)
        elif channel in _HELD:
            self._hold(topic, payload, client, now)
        else:
            self._ignored_total += 1

    def _check_payload(self, channel: Channel, payload: bytes) -> None:
        bytes_max = PAYLOAD_PACKETS_MAX * self._options.mapper.packet_bytes_max
        if channel not in _ANY_SIZE and len(payload) > bytes_max:
            raise MappingError(
                f"a message of {len(payload)} bytes; one that the cloud takes has at most"
                f" {bytes_max}"
            )

    def _hold(self, topic: EntityTopic, payload: bytes, client: str, now: Instant) -> None:
        is_own = self._cleared.pop(topic.text, "") is None and not payload  # a broker hands it back
        if not is_own and not (self._registrar.redelivered and self.pending.has(topic, payload)):
            self.pending.hold(topic, payload, client, now)

    def _handle_registration(
        self, topic: EntityTopic, payload: bytes, client: str, now: Instant
    ) -> None:
        if payload:
            self._registrar.register(topic, payload, client, now)
            return
        removed = self._registrar.deregister(topic)
        left = self._retained_of(removed)
        for entity in removed:
            self._forget(entity, left[entity.topic_id], is_target=entity is removed[-1])

    def _handle_signal(self, topic: EntityTopic) -> None:
        name = default_name(topic.topic_id)
        is_own = name is not None and name.service == self._own_service
        if is_own and topic.name == SYNC:
            self._declare_all()
        else:
            self._ignored_total += 1

    def _register_automatically(self, topic: EntityTopic, now: Instant) -> Entity | None:
        try:
            self._registrar.register_automatically(topic.topic_id, now)
        except MappingError as error:
            self._effects.error(topic.text, str(error))
        return self.registry.get(topic.topic_id)

    def _convert(self, topic: EntityTopic, entity: Entity, payload: bytes, now: Instant) -> None:
        converter = self._converters.get(topic.channel)
        if converter is not None:
            converter(topic, entity, payload, now)
        else:
            self._ignored_total += 1

    def _watch_new(self, entity: Entity, now: Instant) -> None:
        self._heartbeats.watch(entity, now, announce=True)

    def _release(self, entity: Entity) -> None:
        """Convert what was held for an entity, each message with the time of its arrival."""
        for held in self.pending.take(entity.topic_id):
            try:
                self._convert(held.topic, entity, held.payload, held.at)
            except MappingError as error:
                self._effects.error(held.topic.text, str(error))

    def _measurement(
        self, topic: EntityTopic, entity: Entity, payload: bytes, now: Instant
    ) -> None:
        units = self._units.get(entity.topic_id, topic.name)
        row = convert_measurement(entity, topic.name, payload, units, now.wall_ms)
        self._effects.row(OutputName.MEASUREMENTS, self._effects.cloud.measurements, row, entity)

    def _measurement_meta(
        self, topic: EntityTopic, entity: Entity, payload: bytes, _now: Instant
    ) -> None:
        self._units.set(entity.topic_id, topic.name, payload)

    def _event(self, topic: EntityTopic, entity: Entity, payload: bytes, now: Instant) -> None:
        event = EventMessage(entity, topic.name, payload, now.wall_ms)
        cloud = self._effects.cloud
        if event.fits_a_line:
            cloud_topic, row = cloud.own_lines, event.line()
        else:
            cloud_topic, row = cloud.events, event.document()
        if self._effects.fits(cloud_topic, row):
            self._effects.row(OutputName.EVENTS, cloud_topic, row, entity)
        else:
            # Too large for MQTT: a local client may post it over HTTP, as the original does.
            self._large_events_total += 1
            http_topic = f"{cloud.http_events}/{entity.external_id}"
            self._effects.publish(http_topic, event.document(), retain=False)

    def _twin(self, topic: EntityTopic, entity: Entity, payload: bytes, _now: Instant) -> None:
        if not topic.name or topic.name.startswith("@"):
            raise MappingError(f"`{topic.name}` cannot be the key of a twin value")
        self._set_twin(entity, topic.name, read_json(payload) if payload else None)

    def _set_twin(self, entity: Entity, key: str, value: Any) -> None:
        set_twin(self._effects, self.registry, entity, key, value)

    def _health(self, _topic: EntityTopic, entity: Entity, payload: bytes, _now: Instant) -> None:
        if entity.type is not EntityType.SERVICE:
            self._ignored_total += 1
        elif self._services.handle(entity, payload):
            self._ask_for_operations()

    def _capability(self, topic: EntityTopic, entity: Entity, payload: bytes, now: Instant) -> None:
        is_known = self._capabilities.declare(entity, topic.name, payload)
        if is_known and topic.name == SOFTWARE_UPDATE:
            self._commands.request_software_list(entity, now)

    def _ask_for_operations(self) -> None:
        if self._options.asks_for_operations:
            main, line = self.registry.main, smartrest.line(GET_OPERATIONS)
            self._effects.row(OutputName.OPERATIONS, main.topic, line, main)

    def _declare_all(self) -> None:
        for entity in self.registry.all():
            if entity.type is EntityType.MAIN or self._capabilities.has(entity):
                self._capabilities.send(entity)

    def _compare_alarms(self, now: Instant) -> None:
        for text, payload, wall_ms in self._alarms.compare():
            topic = self._scheme.parse(text)
            if topic is None or (not payload and self.pending.holds(topic)):
                continue
            arrived = now if wall_ms is None else now._replace(wall_ms=wall_ms)
            entity = self.registry.get(topic.topic_id)
            try:
                if entity is None:
                    self.pending.hold(topic, payload, "", arrived)
                else:
                    self._alarms.convert(topic, entity, payload, arrived.wall_ms)
            except MappingError as error:
                self._effects.error(text, str(error))

    def _retained_of(self, removed: list[Entity]) -> dict[str, list[str]]:
        # All topics are scanned, so once for all entities.
        above = self._scheme.topic(removed[0].topic_id) if len(removed) == 1 else self._scheme.root
        found: dict[str, list[str]] = {entity.topic_id: [] for entity in removed}
        for topic in self._retained(f"{above}/#") if removed else ():
            topics = found.get(self._scheme.entity_below(topic))
            if topics is not None:
                topics.append(topic)
        return found

    def _forget(self, entity: Entity, left: list[str], *, is_target: bool) -> None:
        """Remove what belongs to an entity that was removed, and clear its retained messages.

        Messages that are left would restore it at the next start, or be held.
        """
        topic_id = entity.topic_id
        topics = [self._scheme.topic(topic_id, "twin", key) for key in entity.twin]
        topics += [
            self._scheme.topic(topic_id, "m", name, "meta") for name in self._units.forget(topic_id)
        ]
        topics += [
            self._scheme.topic(topic_id, "cmd", name) for name in self._capabilities.forget(entity)
        ]
        topics += self._commands.forget(entity)
        topics += self._alarms.forget(entity, self._options.mapper.topic_root)
        if entity.type is EntityType.SERVICE:
            topics.append(self._scheme.topic(topic_id, "status", "health"))
        self._heartbeats.forget(entity)
        for topic in dict.fromkeys([*topics, *left]):
            self._effects.publish(topic, b"", retain=True)
            self._cleared[topic] = None
        while len(self._cleared) > CLEARED_MAX:
            del self._cleared[next(iter(self._cleared))]
        if not is_target:
            self._effects.publish(self._scheme.topic(topic_id), b"", retain=True)
