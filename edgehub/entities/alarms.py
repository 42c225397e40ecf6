"""Alarms: conversion, the journal of live ones, and their comparison after a start.

Owns the journal, a retained copy of every live alarm below `c8y-internal/alarms/` and a row of the
mapper's state, and the alarms seen while the comparison is due. After the start live alarms are
gathered for a while; then what is in the journal and not live is cleared, what is new or different
is sent, and what is equal is left alone. Invariant: one bad alarm stops no other. Rules:
docs/reference/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.entities import smartrest
from edgehub.entities.documents import optional_text, read_object, write_json
from edgehub.entities.effects import OutputName
from edgehub.entities.faults import MappingError
from edgehub.entities.timestamps import write_time
from edgehub.entities.topics import ALARM_JOURNAL

if TYPE_CHECKING:
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.effects import Instant
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.topics import EntityTopic

DEFAULT_TYPE: Final = "ThinEdgeAlarm"
DEFAULT_SEVERITY: Final = "minor"
CLEAR: Final = "306"
ALARMS_MAX: Final = 10_000
"""Live alarms that the journal takes; those beyond are sent, but not compared after a start."""

ALARMS_BYTES_MAX: Final = 16 * 2**20
"""Topics and payloads of those in the journal, and again of those that are gathered."""

LIVE_KEY: Final = "alarm/"
SEEN_KEY: Final = "alarm-seen/"
_CODES: Final = {"critical": "301", "major": "302", "minor": "303", "warning": "304"}
_OWN: Final = frozenset({"type", "severity", "text", "time", "externalSource"})


class Alarms:
    """Alarms of all entities."""

    def __init__(
        self, options: MapperOptions, effects: EffectCollector, stored: dict[str, bytes]
    ) -> None:
        self._effects = effects
        self._live = dict(effects.below(LIVE_KEY, stored, bytes))
        self._seen = dict(effects.below(SEEN_KEY, stored, _read_seen))
        self._live_bytes = sum(map(_size, self._live.items()))
        self._seen_bytes = sum(_size((topic, seen[0])) for topic, seen in self._seen.items())
        self._window_ms = options.mapper.alarm_sync_ms
        self.gathers_until_ms: int | None = None
        """Hub time at which the comparison is due, None = it is done."""

    def start(self, now: Instant) -> None:
        """Start to gather live alarms."""
        self.gathers_until_ms = now.hub_ms + self._window_ms if self._window_ms else None

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the journal and of the gathered alarms."""
        return self._live_bytes + self._seen_bytes

    def handle(self, topic: EntityTopic, entity: Entity, payload: bytes, now: Instant) -> None:
        """Handle an alarm of a registered entity.

        Raises:
            MappingError: It cannot be converted.
        """
        if self.gathers_until_ms is None:
            self.convert(topic, entity, payload, now.wall_ms)
            return
        before = self._seen.get(topic.text)
        grown = _size((topic.text, payload)) - (
            0 if before is None else _size((topic.text, before[0]))
        )
        if before is None and len(self._seen) >= ALARMS_MAX:
            raise MappingError(f"more than {ALARMS_MAX} alarms came right after the start")
        if self._seen_bytes + grown > ALARMS_BYTES_MAX:
            raise MappingError(f"more than {ALARMS_BYTES_MAX} bytes of alarms came after the start")
        self._seen_bytes += grown
        self._seen.pop(topic.text, None)
        self._seen[topic.text] = (payload, now.wall_ms)
        self._effects.keep(SEEN_KEY + topic.text, b"%d %b" % (now.wall_ms, payload))

    def knows(self, topic: str, payload: bytes) -> bool:
        """Return whether an alarm is live and unchanged, if no comparison is due."""
        return self.gathers_until_ms is None and self._live.get(topic) == payload

    def handle_journal(self, topic: str, payload: bytes) -> None:
        """Handle a copy from the journal; it only counts while live alarms are gathered."""
        alarm = topic[len(ALARM_JOURNAL) :]
        if self.gathers_until_ms is None or self._live.get(alarm, b"") == payload:
            return
        if payload and self._has_room(alarm, payload):
            self._put(alarm, payload)

    def compare(self) -> list[tuple[str, bytes, int | None]]:
        """Stop gathering, and return what was missed.

        Returns:
            Topics, payloads and UTC of arrival of the alarms that were missed; first the clearings,
            which have no payload and no time.
        """
        self.gathers_until_ms = None
        seen, self._seen = self._seen, {}
        self._seen_bytes = 0
        missed: list[tuple[str, bytes, int | None]] = [
            (topic, b"", None) for topic in self._live if topic not in seen
        ]
        for topic, (payload, wall_ms) in seen.items():
            self._effects.keep(SEEN_KEY + topic, None)
            if self._live.get(topic, b"") != payload:
                missed.append((topic, payload, wall_ms))
        return missed

    def convert(self, topic: EntityTopic, entity: Entity, payload: bytes, now_ms: int) -> None:
        """Send an alarm, or its clearing, and record it in the journal.

        Raises:
            MappingError: It cannot be converted.
        """
        if payload:
            cloud_topic, row = self._raised(topic.name, entity, read_object(payload), now_ms)
        else:
            cloud_topic = entity.topic
            row = smartrest.line(CLEAR, topic.name or DEFAULT_TYPE)
        if not self._effects.row(OutputName.ALARMS, cloud_topic, row, entity):
            return
        self._record(topic.text, payload)

    def forget(self, entity: Entity, root: str) -> list[str]:
        """Remove the alarms of an entity that is removed.

        Returns:
            Their topics.
        """
        prefix = f"{root}/{entity.topic_id}/a/"
        removed = [topic for topic in self._live if topic.startswith(prefix)]
        for topic in removed:
            self._record(topic, b"")
        for topic in [topic for topic in self._seen if topic.startswith(prefix)]:
            self._seen_bytes -= _size((topic, self._seen.pop(topic)[0]))
            self._effects.keep(SEEN_KEY + topic, None)
        return removed

    def _raised(
        self, type_name: str, entity: Entity, alarm: dict[str, Any], now_ms: int
    ) -> tuple[str, bytes]:
        own_type = alarm.get("type")
        type_ = own_type if own_type and isinstance(own_type, str) else type_name or DEFAULT_TYPE
        severity = optional_text(alarm, "severity")
        if severity not in _CODES:
            severity = DEFAULT_SEVERITY
        text = optional_text(alarm, "text")
        text = type_ if text is None else text
        time = write_time(alarm.get("time"), now_ms)
        extras = {key: value for key, value in alarm.items() if key not in _OWN}
        if not extras:
            return entity.topic, smartrest.line(_CODES[severity], type_, text, time)
        document = {
            "type": type_,
            "severity": severity.upper(),
            "text": text,
            "time": time,
            **extras,
        }
        if entity.source is not None:
            document["externalSource"] = entity.source
        return self._effects.cloud.alarms, write_json(document)

    def _record(self, topic: str, payload: bytes) -> None:
        if payload and not self._has_room(topic, payload):
            return
        self._effects.publish(f"{ALARM_JOURNAL}{topic}", payload, retain=True)
        if payload:
            self._put(topic, payload)
        elif topic in self._live:
            self._live_bytes -= _size((topic, self._live.pop(topic)))
            self._effects.keep(LIVE_KEY + topic, None)

    def _has_room(self, topic: str, payload: bytes) -> bool:
        before = self._live.get(topic)
        if before is None and len(self._live) >= ALARMS_MAX:
            return False
        return self._live_bytes + _size((topic, payload)) <= ALARMS_BYTES_MAX or before == payload

    def _put(self, topic: str, payload: bytes) -> None:
        before = self._live.get(topic)
        self._live_bytes += _size((topic, payload)) - (
            0 if before is None else _size((topic, before))
        )
        self._live[topic] = payload
        self._effects.keep(LIVE_KEY + topic, payload)


def _size(item: tuple[str, bytes]) -> int:
    return len(item[0]) + len(item[1])


def _read_seen(value: bytes) -> tuple[bytes, int] | None:
    wall_ms, _, payload = value.partition(b" ")
    return (payload, int(wall_ms)) if wall_ms.isdigit() else None
