"""The collector of effects: checks the size of every row once, and counts.

Owns the effects of the present message and the cloud's topics. Invariant: no row is larger than the
cloud's broker takes; what is too large becomes an error instead.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from edgehub.entities.documents import write_json
from edgehub.entities.effects import LocalPublish, Output, OutputName, TableChange
from edgehub.entities.entity import EntityType
from edgehub.entities.faults import MappingError
from edgehub.entities.tables import EntityTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.entities.effects import Effect
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions

T = TypeVar("T")

PACKET_OVERHEAD_BYTES: Final = 9
"""Fixed header with the longest length, length of the topic, packet id."""

ERROR_CHARACTERS_MAX: Final = 1000
"""An error may quote what a client sent."""


class CloudTopics:
    """Topics at the cloud, below the local prefix."""

    def __init__(self, prefix: str) -> None:
        self.own_lines = f"{prefix}/s/us"
        self.measurements = f"{prefix}/measurement/measurements/create"
        self.events = f"{prefix}/event/events/create"
        self.http_events = f"{prefix}/http/events/create"
        self.alarms = f"{prefix}/alarm/alarms/create"
        self.inventory = f"{prefix}/inventory/managedObjects/update"
        self.notifications = f"{prefix}/devicecontrol/notifications"

    def lines_of(self, external_id: str) -> str:
        """Return the topic of the SmartREST lines of an entity that is not the main device."""
        return f"{self.own_lines}/{external_id}"


class EffectCollector:
    """Collects the effects of all parts of the mapper."""

    def __init__(self, options: MapperOptions) -> None:
        self.cloud = CloudTopics(options.mapper.topic_prefix)
        self.outputs_total: Counter[OutputName] = Counter()
        self.errors_total = 0
        self.newest_error = ""
        self.dropped_total = 0
        self._effects: list[Effect] = []
        self._errors_topic = f"{options.mapper.topic_root}/errors"
        self._packet_bytes_max = options.mapper.packet_bytes_max

    def take(self) -> list[Effect]:
        """Remove and return the collected effects, in their order."""
        effects, self._effects = self._effects, []
        return effects

    def fits(self, topic: str, payload: bytes) -> bool:
        """Return whether the cloud's broker takes such a packet."""
        return len(payload) <= self.room(topic)

    def room(self, topic: str) -> int:
        """Return the bytes of the largest payload that the cloud's broker takes on a topic."""
        used = PACKET_OVERHEAD_BYTES + len(topic.encode("utf-8", "replace"))
        return self._packet_bytes_max - used

    def check_size(self, topic: str, payload: bytes, entity: Entity) -> None:
        """Check that the cloud's broker takes a row.

        Raises:
            MappingError: It is too large.
        """
        if not self.fits(topic, payload):
            raise MappingError(
                f"a message of {len(payload)} bytes about {entity.external_id} is larger than the"
                f" cloud takes, {self._packet_bytes_max} bytes with its topic; it is dropped"
            )

    def row(self, output: OutputName, topic: str, payload: bytes, entity: Entity) -> bool:
        """Send a row about an entity that is registered; an error if it is too large.

        Returns:
            Whether it was sent.
        """
        needs = () if entity.type is EntityType.MAIN else (entity.external_id,)
        return self._send(output, topic, payload, entity, creates=None, needs=needs)

    def row_below(self, output: OutputName, payload: bytes, entity: Entity, parent: Entity) -> bool:
        """Send a row about an entity on the topic of its parent; an error if it is too large.

        The parent may be a new one, which the cloud does not have yet.

        Returns:
            Whether it was sent.
        """
        needs = (entity.external_id, parent.external_id)
        return self._send(output, parent.topic, payload, entity, creates=None, needs=needs)

    def creation(self, topic: str, payload: bytes, entity: Entity, parent: Entity) -> bool:
        """Send the row that creates an entity below its parent; an error if it is too large.

        Returns:
            Whether it was sent.
        """
        needs = () if parent.type is EntityType.MAIN else (parent.external_id,)
        return self._send(
            OutputName.INVENTORY, topic, payload, entity, creates=entity.topic_id, needs=needs
        )

    def twin(self, entity: Entity, key: str, value: Any) -> None:
        """Send one fragment of the inventory; `key` as the cloud calls it, None clears it."""
        topic = f"{self.cloud.inventory}/{entity.external_id}"
        self.row(OutputName.TWIN, topic, write_json({key: value}), entity)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Publish a local message."""
        self._effects.append(LocalPublish(topic, payload, retain=retain))

    def error(self, about: str, reason: str) -> None:
        """Publish what is wrong with a message; `about` is its topic."""
        self.errors_total += 1
        about = about[: ERROR_CHARACTERS_MAX // 2]
        self.newest_error = f"{about}: {reason}"[:ERROR_CHARACTERS_MAX]
        text = self.newest_error.encode("utf-8", "replace")
        self._effects.append(LocalPublish(self._errors_topic, text, retain=False))

    def change(
        self,
        table: EntityTable,
        key: tuple[str | int, ...],
        value: tuple[str | int | bytes, ...] | None,
    ) -> None:
        """Write a row of a table, or delete it with None."""
        self._effects.append(TableChange(table, key, value))

    def keep(self, key: str, value: bytes | None) -> None:
        """Write a value of the mapper's own state, or delete it with None."""
        self.change(EntityTable.STATE, (key,), None if value is None else (value,))

    def below(
        self, prefix: str, stored: dict[str, bytes], read: Callable[[bytes], T | None]
    ) -> Iterator[tuple[str, T]]:
        """Return the mapper's stored state below a prefix; drops what cannot be read."""
        for key, value in stored.items():
            if key.startswith(prefix):
                found = read(value)
                if found is None:
                    self.drop_stored(EntityTable.STATE, (key,))
                else:
                    yield key[len(prefix) :], found

    def drop_stored(self, table: EntityTable, key: tuple[str | int, ...]) -> None:
        """Delete a stored row that is orphaned or unreadable, and count it."""
        self.dropped_total += 1
        self.change(table, key, None)

    def _send(
        self,
        output: OutputName,
        topic: str,
        payload: bytes,
        entity: Entity,
        *,
        creates: str | None,
        needs: tuple[str, ...],
    ) -> bool:
        try:
            self.check_size(topic, payload, entity)
        except MappingError as error:
            self.error(topic, str(error))
            return False
        self.outputs_total[output] += 1
        self._effects.append(
            Output(output, topic, payload, entity.external_id, creates=creates, needs=needs)
        )
        return True
