"""A mapper on tables of its own for tests: messages in, lines out, restarts."""

from __future__ import annotations

import json
import sqlite3
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

from edgehub.entities.effects import Effect, Instant, Output, TableChange
from edgehub.entities.mapper import Mapper
from edgehub.entities.options import MapperOptions
from edgehub.entities.tables import load_entities, statement_of
from edgehub.settings.mapper import EntitySettings, MapperSettings
from edgehub.store.migrations import migrate
from edgehub.store.row_changes import execute_all

if TYPE_CHECKING:
    from collections.abc import Hashable

    from edgehub.store.row_changes import Statement

WALL_MS = 1_770_091_506_000  # 2026-02-03T04:05:06Z
TIME = "2026-02-03T04:05:06Z"
UP = "c8y/s/us"
INVENTORY = "c8y/inventory/managedObjects/update"
MEASUREMENTS = "c8y/measurement/measurements/create"
ERRORS = "te/errors"

Line = tuple[str, Any]


def options_of(device_id: str, **settings: Any) -> MapperOptions:
    """Return options with some settings, which are not checked, and the defaults of the others.

    Args:
        device_id: External id of the main device.
        settings: By their names, of both sections.
    """
    names = settings.keys() & EntitySettings.model_fields
    entities = {name: settings.pop(name) for name in names}
    assert settings.keys() <= MapperSettings.model_fields.keys(), settings
    return MapperOptions(
        device_id=device_id,
        entities=EntitySettings.model_construct(**entities),
        mapper=MapperSettings.model_construct(**settings),
    )


class MapperBench:
    """A mapper and its tables; hub time stands until told to go on."""

    def __init__(self, path: str = ":memory:", *, known: Any = None, **options: Any) -> None:
        """Start one; `options` are settings, `known` are identities."""
        self.known = known or {}
        self.options = options_of(**{"device_id": "hub-01", "alarm_sync_ms": 0, **options})
        self.connection = sqlite3.connect(path, isolation_level=None)
        weakref.finalize(self, self.connection.close)
        if path == ":memory:":
            self.connection.deserialize(_empty_database())
        else:
            migrate(self.connection)
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.restart()

    def restart(self) -> list[Line]:
        """Begin anew with what the tables hold, and give what the start sends."""
        stored = load_entities(self.connection)
        self.mapper = Mapper(self.options, stored, known=self.known, hub_id="hub-01")
        return self.carry_out(self.mapper.start(self.now))

    @property
    def now(self) -> Instant:
        """The moment it is."""
        return Instant(self.now_ms, WALL_MS + self.now_ms)

    def send(self, topic: str, payload: Any = b"", *, client: str = "") -> list[Line]:
        """Hand in a message; what is no text or bytes is written as JSON."""
        if isinstance(payload, str):
            payload = payload.encode()
        elif not isinstance(payload, bytes):
            payload = json.dumps(payload).encode()
        return self.carry_out(self.mapper.handle(topic, payload, self.now, client=client))

    def child(self, device: str, /, **members: Any) -> list[Line]:
        """Register `device/<device>//` with the id of its name in capitals."""
        registration = {"@type": "child-device", "@id": device.upper(), **members}
        return self.send(f"te/device/{device}//", registration)

    def go_on(self, milliseconds: int) -> list[Line]:
        """Let time pass and do what falls due, each at its time."""
        end_ms = self.now_ms + milliseconds
        lines: list[Line] = []
        while (due_ms := self.mapper.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            lines += self.carry_out(self.mapper.tick(self.now))
        self.now_ms = end_ms
        return lines

    def refuse_creation(self, topic_id: str) -> None:
        """Let the cloud refuse the create line of an entity."""
        self.carry_out(self.mapper.creation_refused(topic_id))

    def outputs(self) -> list[Output]:
        """Return the rows of the last message."""
        return [effect for effect in self.effects if isinstance(effect, Output)]

    def carry_out(self, effects: list[Effect]) -> list[Line]:
        """Write changes, and give the lines."""
        self.effects = effects
        writes: dict[Hashable, Statement] = {}
        lines: list[Line] = []
        for effect in effects:
            if isinstance(effect, TableChange):
                statement = statement_of(effect.table, effect.key, effect.value)
                writes[effect.table, effect.key] = statement
            else:
                lines.append((effect.topic, _readable(effect.payload)))
        self.connection.execute("BEGIN")
        execute_all(writes, self.connection)
        self.connection.execute("COMMIT")
        return lines


@cache  # making the tables costs more than most tests
def _empty_database() -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    empty = connection.serialize()
    connection.close()
    return empty


def _readable(payload: bytes) -> Any:
    return json.loads(payload) if payload.startswith(b"{") else payload.decode()


def cloud(lines: list[Line]) -> list[Line]:
    """Return what goes to the cloud."""
    return [line for line in lines if line[0].startswith("c8y/")]


def error_of(lines: list[Line]) -> str:
    """Return the text of the one error that a message caused, and nothing else."""
    ((topic, text),) = lines
    assert topic == ERRORS, lines
    return str(text)
