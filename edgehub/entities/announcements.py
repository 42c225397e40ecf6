"""Announcements: pending creations of entities, and the rows that depend on them.

Owns the predecessor of each row that is about an entity. An announcement is pending from its append
until the cloud confirms it; it is refused when its row became a dead letter or an operator removed
it, until another announcement of the same entity is confirmed. Every
change is a change of the table `mapper_state`. Calls nothing. Invariant: a row that names a
predecessor may leave only once that is confirmed, or another one of the same entity in its stead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from msgspec import Struct

from edgehub.entities.documents import read_stored
from edgehub.entities.effects import TableChange
from edgehub.entities.tables import EntityTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.message import EndpointId

STATE_KEY: Final = "creation/"


class Subject(NamedTuple):
    """The entity of an announcement, and its destination.

    Attributes:
        endpoint_id: Destination.
        topic_id: The entity.
        external_id: Its id at the cloud; another one is another entity there.
    """

    endpoint_id: EndpointId
    topic_id: str
    external_id: str


class Announcement(Struct, eq=False):
    """One row that creates an entity.

    Attributes:
        offset: Its row.
        subject: See `Subject`.
        needs: Offset of the announcement of the parent, which is sent first; None = none is.
        digest: Of topic and payload; the same need not be sent twice.
        refused: See the module.
    """

    offset: int
    subject: Subject
    needs: int | None
    digest: int
    refused: bool = False


class Announcements:
    """All of one hub.

    Args:
        stored: The mapper's state from the tables.
    """

    def __init__(self, stored: Iterable[tuple[str, bytes]] = ()) -> None:
        self._by_offset: dict[int, Announcement] = {}
        self._by_subject: dict[Subject, dict[int, Announcement]] = {}
        self._current: dict[tuple[EndpointId, str], Announcement] = {}
        self._watchers: list[Callable[[EndpointId], None]] = []
        self._dropped: list[TableChange] = []
        for key, value in stored:
            if key.startswith(STATE_KEY):
                found = read_stored(value, _stored)
                if found is None:
                    self._dropped.append(TableChange(EntityTable.STATE, (key,), None))
                else:
                    self._insert(found)

    def __len__(self) -> int:
        """Return the number of those that are pending or refused."""
        return len(self._by_offset)

    def resume(self, waiting: set[int], dead: set[int]) -> tuple[list[TableChange], list[Subject]]:
        """Compare with the queues, before anything is sent.

        Args:
            waiting: Offsets of all rows in queues that create entities.
            dead: Offsets of those of the dead letters.

        Returns:
            What is to be written, and those that the cloud has refused since.
        """
        changes, self._dropped = self._dropped, []
        refused: list[Subject] = []
        for known in list(self._by_offset.values()):
            if known.offset in waiting:
                if known.refused:
                    known.refused = False
                    changes.append(_change(known))
            elif known.offset in dead:
                if not known.refused:
                    refused.append(known.subject)
                    known.refused = True
                    changes.append(_change(known))
            elif not known.refused:
                # Its row left and the hub ended before that was noted.
                changes += map(cleared, self.confirmed(known.offset))
        return changes, refused

    @property
    def refused_count(self) -> int:
        """Return the number of those that are refused."""
        return sum(1 for known in self._by_offset.values() if known.refused)

    def offsets(self) -> set[int]:
        """Return the rows of all of them."""
        return set(self._by_offset)

    def is_pending(self, subject: Subject, digest: int) -> bool:
        """Return whether the same is waiting to be sent already."""
        return any(
            known.digest == digest and not known.refused
            for known in self._by_subject.get(subject, {}).values()
        )

    def came(self, offset: int, subject: Subject, needs: int | None, digest: int) -> TableChange:
        """Record one whose row has just been handed in."""
        announcement = Announcement(offset, subject, needs, digest)
        self._insert(announcement)
        if len(self._by_subject[subject]) > 1:
            # It may stand in for one that was refused.
            self._notify(subject.endpoint_id)
        return _change(announcement)

    def predecessor(self, endpoint_id: EndpointId, external_id: str) -> int | None:
        """Return the offset that a new row about an entity waits for, None = it need not wait.

        Its id at the cloud says which one: a topic id may have stood for another entity before.
        """
        current = self._current.get((endpoint_id, external_id))
        return None if current is None else current.offset

    def is_open(self, offset: int, endpoint_id: EndpointId) -> bool:
        """Return whether rows of an endpoint have to wait behind a predecessor."""
        known = self._by_offset.get(offset)
        return known is not None and known.subject.endpoint_id == endpoint_id

    def stand_in(self, offset: int) -> Announcement | None:
        """Return the announcement to be sent for a predecessor, None = there is none (yet)."""
        known = self._by_offset.get(offset)
        if known is None or not known.refused:
            return known
        others = self._by_subject[known.subject].values()
        return next((other for other in others if not other.refused), None)

    def confirmed(self, offset: int) -> list[int]:
        """Record that the cloud has one; refused ones of the same entity end with it.

        Returns:
            The offsets of all that have ended; the caller writes that, see `cleared`.
        """
        known = self._by_offset.get(offset)
        if known is None:
            return []
        same = self._by_subject[known.subject]
        ended = [known, *(other for other in same.values() if other.refused and other is not known)]
        for each in ended:
            self._remove(each)
        return [each.offset for each in ended]

    def refused(self, offset: int) -> tuple[list[TableChange], Subject | None]:
        """Record that the cloud refuses one, or that it was removed.

        Returns:
            The changes to write, and its subject, None = it is unknown or refused already.
        """
        known = self._by_offset.get(offset)
        if known is None or known.refused:
            return [], None
        known.refused = True
        return [_change(known)], known.subject

    def came_back(self, offset: int) -> list[TableChange]:
        """Record that the row of a refused one waits again."""
        known = self._by_offset.get(offset)
        if known is None or not known.refused:
            return []
        known.refused = False
        self._notify(known.subject.endpoint_id)
        return [_change(known)]

    def moved(self, offset: int, endpoint_id: EndpointId) -> list[TableChange]:
        """Record that the row of one was moved to another endpoint."""
        known = self._by_offset.get(offset)
        if known is None:
            return []
        before = known.subject.endpoint_id
        self._remove(known)
        known.refused = False
        known.subject = known.subject._replace(endpoint_id=endpoint_id)
        self._insert(known)
        self._notify(before)
        self._notify(endpoint_id)
        return [_change(known)]

    def forgotten(self, offset: int) -> list[TableChange]:
        """Remove one: nothing depends on it any more, or its row was moved."""
        known = self._by_offset.get(offset)
        if known is None:
            return []
        self._remove(known)
        self._notify(known.subject.endpoint_id)
        return [cleared(offset)]

    def of(self, endpoint_id: EndpointId) -> list[Announcement]:
        """Return those of an endpoint, oldest first."""
        return [
            known for known in self._by_offset.values() if known.subject.endpoint_id == endpoint_id
        ]

    def endpoints(self) -> set[EndpointId]:
        """Return the endpoints of all of them."""
        return {known.subject.endpoint_id for known in self._by_offset.values()}

    def watch(self, listener: Callable[[EndpointId], None]) -> None:
        """Call `listener` when one ends, or may be sent again, but not when one is delivered."""
        self._watchers.append(listener)

    def unwatch(self, listener: Callable[[EndpointId], None]) -> None:
        """Call it no more."""
        self._watchers.remove(listener)

    def _notify(self, endpoint_id: EndpointId) -> None:
        for listener in self._watchers:
            listener(endpoint_id)

    def _insert(self, known: Announcement) -> None:
        subject = known.subject
        self._by_offset[known.offset] = known
        self._by_subject.setdefault(subject, {})[known.offset] = known
        self._current[subject.endpoint_id, subject.external_id] = known

    def _remove(self, known: Announcement) -> None:
        subject = known.subject
        del self._by_offset[known.offset]
        same = self._by_subject[subject]
        del same[known.offset]
        if not same:
            del self._by_subject[subject]
        key = subject.endpoint_id, subject.external_id
        if self._current.get(key) is known:
            del self._current[key]


def cleared(offset: int) -> TableChange:
    """Return the change that removes one."""
    return TableChange(EntityTable.STATE, (_key(offset),), None)


def _change(known: Announcement) -> TableChange:
    document = [known.offset, *known.subject, known.needs, known.digest, known.refused]
    return TableChange(EntityTable.STATE, (_key(known.offset),), (orjson.dumps(document),))


def _key(offset: int) -> str:
    # Of one length, so that they are read in the order of their offsets.
    return f"{STATE_KEY}{offset:019d}"


def _stored(document: list[Any]) -> Announcement:
    offset, endpoint_id, topic_id, external_id, needs, digest, refused = document
    subject = Subject(endpoint_id, str(topic_id), str(external_id))
    known = Announcement(int(offset), subject, None if needs is None else int(needs), int(digest))
    known.refused = bool(refused)
    return known
