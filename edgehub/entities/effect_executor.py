"""Carries out the effects of a message: rows, changes and local messages.

Owns the changes that wait for the open transaction. Invariants: rows and changes of one message are
in one transaction; nothing is added to changes of a committed transaction; the message is settled
once all of it is durable.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from edgehub.endpoints.cumulocity import MAPPER_MODULE, TOPIC_PROPERTY
from edgehub.endpoints.mqtt_topic import TOPIC_BYTES_MAX
from edgehub.entities.announcements import Subject
from edgehub.entities.effects import LocalPublish, Output, TableChange
from edgehub.entities.tables import statement_of
from edgehub.heads.mqtt.local.ticket import Ticket
from edgehub.local_message import LocalMessage
from edgehub.message import Message, message_source
from edgehub.store.row_changes import RowChanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.entities.announcements import Announcements
    from edgehub.entities.effects import Effect
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.local_message import Settle
    from edgehub.message import RouteResult
    from edgehub.router import Router
    from edgehub.store.store import Store

_DIGEST_BYTES: Final = 6
_JSON: Final = {"contentType": "application/json", "contentEncoding": "utf-8"}


class EffectExecutor:
    """Carries out effects in the transactions of the store.

    Args:
        hub_id: Publishes the local messages.
        store: Takes rows and changes.
        router: Routes rows.
        space: Takes local messages.
        announcements: Pending creations.
    """

    def __init__(
        self,
        *,
        hub_id: str,
        store: Store,
        router: Router,
        space: LocalSpace,
        announcements: Announcements,
    ) -> None:
        self._hub_id = hub_id
        self._store = store
        self._router = router
        self._space = space
        self._announcements = announcements
        self._changes = RowChanges(store.writer, "mapping.state_not_stored", commit_now=False)
        self.publishing = False
        """Whether a local message that arrives now is being published here."""

    def carry_out(self, effects: Sequence[Effect], settle: Settle, token: int) -> bool:
        """Carry out the effects of one message.

        `settle(token, None)` follows once all of it is durable.

        Returns:
            Whether tables change.
        """
        if not effects:
            # Changes of the message that it repeats may not be on disk yet.
            self._changes.wait(Ticket(settle, token).done)
            return False
        if len(effects) == 1 and isinstance(effects[0], Output) and effects[0].creates is None:
            # Data of a known entity, nearly every message: one row and nothing else.
            self._send(effects[0], settle, token, overdraw=False)
            return False
        ticket = Ticket(settle, token)
        with self._store.writer.together():
            changes: list[TableChange] = []
            for effect in effects:
                if isinstance(effect, TableChange):
                    changes.append(effect)
                elif isinstance(effect, LocalPublish):
                    self.publish(effect.topic, effect.payload, ticket, retain=effect.retain)
                elif effect.creates is None:
                    self._send(effect, ticket.hold(), 0, overdraw=True)
                else:
                    changes += self._announce(effect, effect.creates, ticket)
            if changes:
                self.write(changes, ticket.hold())
        ticket.done(0, None)
        return bool(changes)

    def write(self, changes: Sequence[TableChange], settle: Settle | None = None) -> None:
        """Write changes; `settle` needs at least one."""
        with self._store.writer.together():
            for at, change in enumerate(changes, 1):
                statement = statement_of(change.table, change.key, change.value)
                settled = settle if at == len(changes) else None
                self._changes.add((change.table, change.key), statement, settled)

    def can_publish(self, topic: str) -> bool:
        """Return whether a topic is one of the local space, as it is for clients."""
        try:
            raw = topic.encode()
        except UnicodeEncodeError:
            return False
        return len(raw) <= TOPIC_BYTES_MAX and self._space.topic(raw) is not None

    def publish(self, topic: str, payload: bytes, ticket: Ticket, *, retain: bool) -> None:
        """Publish a local message of the hub itself."""
        message = LocalMessage(topic, payload, publisher=self._hub_id, retain=retain)
        was_publishing, self.publishing = self.publishing, True
        try:
            self._space.publish(message, ticket.hold(), 0)
        finally:
            self.publishing = was_publishing

    def _send(self, row: Output, settle: Settle, token: int, *, overdraw: bool) -> None:
        message = _message(row)
        results = self._router.route(message)
        if row.needs and len(self._announcements):
            results = [self._behind(result, row.needs) for result in results]
        self._store.appender.append(message, results, settle, token, overdraw=overdraw)

    def _announce(self, row: Output, topic_id: str, ticket: Ticket) -> list[TableChange]:
        message = _message(row)
        known = self._announcements
        digest = _digest(row)
        results: list[tuple[RouteResult, Subject]] = []
        for result in self._router.route(message):
            subject = Subject(result.endpoint_id, topic_id, row.device)
            if known.is_pending(subject, digest):
                continue
            behind = self._behind(result, row.needs)
            results.append((replace(behind, creation=True), subject))
        first = self._store.appender.append(
            message, [result for result, _ in results], ticket.hold(), 0, overdraw=True
        )
        if not first:
            return []
        return [
            known.came(offset, subject, result.predecessor, digest)
            for offset, (result, subject) in enumerate(results, first)
        ]

    def _behind(self, result: RouteResult, needs: tuple[str, ...]) -> RouteResult:
        for external_id in needs:
            predecessor = self._announcements.predecessor(result.endpoint_id, external_id)
            if predecessor is not None:
                return replace(result, predecessor=predecessor)
        return result


def _message(row: Output) -> Message:
    system: dict[str, str | None] = {"outputName": row.output.value}
    if row.payload.startswith(b"{"):
        system |= _JSON
    source = message_source(MAPPER_MODULE, row.output.value)
    properties: dict[str, str | None] = {TOPIC_PROPERTY: row.topic}
    return Message(row.device, MAPPER_MODULE, source, properties, system, row.payload)


def _digest(row: Output) -> int:
    digest = blake2b(row.topic.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES)
    digest.update(b"\0" + row.payload)
    return int.from_bytes(digest.digest())
