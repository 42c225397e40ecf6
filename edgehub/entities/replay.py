"""A dry run of the mapper: messages in, what it would send out, on a clock of its own.

Owns a mapper, the retained messages of a broker, and a scratch database for restarts; no running
hub is touched. The mapper, the tables and their transactions are those of the daemon.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.entities.effects import Instant, LocalPublish, TableChange
from edgehub.entities.mapper import Mapper
from edgehub.entities.replay_form import ReplayFormError, read_replay
from edgehub.entities.tables import EntityContents, load_entities, statement_of
from edgehub.entities.topics import ALARM_JOURNAL
from edgehub.mqtt.topic_filter import matches
from edgehub.storage.sqlite_transaction import in_transaction
from edgehub.store.migrations import migrate
from edgehub.store.row_changes import execute_all

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from edgehub.entities.effects import Effect
    from edgehub.entities.replay_form import Replay, ReplayInput
    from edgehub.store.row_changes import Statement

WALL_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the time of day at which every replay starts."""

CONTROL: Final = "$ctl/"


def replay(form: Any) -> list[dict[str, Any]]:
    """Run one replay.

    Args:
        form: See `read_replay`.

    Returns:
        What would be sent, in order: `topic`, `payload` (JSON where it is an object that the mapper
        made, else text) and `retain`.

    Raises:
        ReplayFormError: The form cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="edgehub-replay-") as folder:
        return _Run(read_replay(form), Path(folder) / "replay.db").run()


class _Run:
    """One running replay."""

    def __init__(self, replay_: Replay, path: Path) -> None:
        self._replay = replay_
        self._path = path
        self._shown: list[dict[str, Any]] = []
        self._retained: dict[str, bytes] = {}
        self._queued: list[ReplayInput] = []
        self._writes: dict[Hashable, Statement] = {}
        self._mapper: Mapper | None = None

    def run(self) -> list[dict[str, Any]]:
        """Start, handle every message, and return the results."""
        self._start(EntityContents(), 0)
        for message in self._replay.inputs:
            self._advance(message.at_ms)
            if message.topic.startswith(CONTROL):
                self._control(message)
            else:
                self._publish(message)
        return self._shown

    def _control(self, message: ReplayInput) -> None:
        match message.topic[len(CONTROL) :]:
            case "restart":
                self._stop()
                self._restart(message.at_ms)
            case "stop":
                self._stop()
            case "start":
                self._restart(message.at_ms)
            case "wait":
                pass
            case word:
                raise ReplayFormError(
                    f"`{CONTROL}{word}` is no control; there are restart, stop, start and wait"
                )

    def _publish(self, message: ReplayInput) -> None:
        if message.retain:
            self._keep(message.topic, message.payload)
        if self._mapper is None:
            self._queued.append(message)
        else:
            self._handle(message.topic, message.payload, message.at_ms, message.client)

    def _start(self, stored: EntityContents, at_ms: int) -> None:
        self._mapper = Mapper(self._replay.options, stored, retained=self._retained_topics)
        effects = self._mapper.start(_instant(at_ms))
        shown = len(self._shown)
        self._carry_out(effects)
        if not self._replay.shows_start:
            del self._shown[shown:]

    def _restart(self, at_ms: int) -> None:
        if self._mapper is not None:
            return
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            migrate(connection)
            in_transaction(connection, partial(execute_all, self._writes))
            stored = load_entities(connection)
        self._writes = {}
        self._start(stored, at_ms)
        queued, self._queued = self._queued, []
        for message in queued:
            self._handle(message.topic, message.payload, at_ms, message.client)
        # A retained message that was queued too is the same; a broker would send it again.
        known = {(message.topic, message.payload) for message in queued if message.retain}
        for topic, payload in list(self._retained.items()):
            if (topic, payload) not in known:
                self._handle(topic, payload, at_ms, "")

    def _stop(self) -> None:
        self._mapper = None

    def _advance(self, at_ms: int) -> None:
        while self._mapper is not None:
            due_ms = self._mapper.next_due_ms()
            if due_ms is None or due_ms > at_ms:
                return
            self._carry_out(self._mapper.tick(_instant(due_ms)))

    def _handle(self, topic: str, payload: bytes, at_ms: int, client: str) -> None:
        assert self._mapper is not None
        self._carry_out(self._mapper.handle(topic, payload, _instant(at_ms), client=client))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, TableChange):
                statement = statement_of(effect.table, effect.key, effect.value)
                self._writes[effect.table, effect.key] = statement
                continue
            retain = isinstance(effect, LocalPublish) and effect.retain
            if retain:
                self._keep(effect.topic, effect.payload)
            if any(matches(wanted, effect.topic) for wanted in self._replay.observe):
                self._shown.append(_shown(effect.topic, effect.payload, retain=retain))

    def _retained_topics(self, topic_filter: str) -> list[str]:
        return [topic for topic in self._retained if matches(topic_filter, topic)]

    def _keep(self, topic: str, payload: bytes) -> None:
        if payload:
            self._retained[topic] = payload
        else:
            self._retained.pop(topic, None)


def _instant(at_ms: int) -> Instant:
    return Instant(at_ms, WALL_MS + at_ms)


def _shown(topic: str, payload: bytes, *, retain: bool) -> dict[str, Any]:
    value: Any = payload.decode("utf-8", "replace")
    if payload.startswith(b"{") and not topic.startswith(ALARM_JOURNAL):
        value = orjson.loads(payload)
    return {"topic": topic, "payload": value, "retain": retain}
