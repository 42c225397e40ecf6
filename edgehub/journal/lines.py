"""The lines of the journal: one JSON object for each event.

Source: docs/reference/journal-format.md. Owns the texts. A line is put together from parts that
are made once per commit and queue, because there are as many lines as rows come and go.
Invariant: no line without a key that its event has, none with a key whose value would be null.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.journal.row_events import RowEvent, moved_target
from edgehub.message import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.journal.events import Section
    from edgehub.journal.waits import Split, Waits

VERSION: Final = 2
DAY_MS: Final = 86_400_000
PIECE_LINES: Final = 128
"""Lines made in one go: a fraction of a millisecond of the loop's time."""

_NAMES: Final = {event.value: event.name.lower() for event in RowEvent}
EVENTS: Final = (
    *_NAMES.values(),
    *("carried", "refused", "dead_purged", "link", "traffic", "settings"),
)
"""Names of all events."""

_TRIED: Final = frozenset(
    {RowEvent.SENT, RowEvent.RETRIED, RowEvent.DEAD_LETTERED, RowEvent.EXPIRED}
)
_LEFT: Final = RowEvent.DROPPED
"""This event and those behind it are of rows that waited without being tried."""
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


class Origin:
    """Where lines come from.

    Attributes:
        hub_id: The hub.
        store_id: Id of the database file, 16 hex digits.
        message_prefix: What message ids of that file begin with, up to the offset.
    """

    def __init__(self, hub_id: str, store_id: str, message_prefix: str) -> None:
        self.hub_id = hub_id
        self.store_id = store_id
        self.message_prefix = message_prefix
        self.head = f'{{"v":{VERSION},"hub":{_json(hub_id)},"store":{_json(store_id)},"commit":'


class CommitLines:
    """Makes the lines of one commit.

    Args:
        origin: See `Origin`.
        number: Of the commit.
        hub_ms: Hub time of the commit.
        wall_ms: UTC of the commit.
        seq: Place of the first line in its commit.
    """

    __slots__ = ("_ahead_ms", "_day", "_head", "_message_prefix", "_second", "_second_text", "seq")

    def __init__(
        self, origin: Origin, number: int, hub_ms: int, wall_ms: int, *, seq: int = 0
    ) -> None:
        self._head = f'{origin.head}{number},"seq":'
        self._message_prefix = origin.message_prefix
        self._ahead_ms = wall_ms - hub_ms
        self._day: int | None = wall_ms // DAY_MS
        self.seq = seq
        """Place of the next line."""
        self._second = -1
        self._second_text = ""

    def for_day(self, day: int | None) -> None:
        """Date the next lines on this day, counted from 1970, whatever their time was.

        None = the date is not known, their time is what it is.
        """
        self._day = day

    def line(self, event: str, hub_ms: int, **keys: Any) -> str:
        """Make a line that is not about one row; keys whose value is None are left out."""
        text = "".join(
            [f',"{key}":{_json(value)}' for key, value in keys.items() if value is not None]
        )
        return f'{self._begin(hub_ms)},"event":"{event}"{text}}}\n'

    def rows(
        self, section: Section, waits: Waits
    ) -> Iterator[tuple[list[str], list[tuple[int, int, int]]]]:
        """Make the lines of one section, some at a time.

        Yields:
            Lines, and event, bytes and enqueue time of each of them.
        """
        queue = f',"endpoint":{_json(section.endpoint_id)}'
        if section.priority != DEFAULT_PRIORITY:
            queue += f',"priority":{section.priority}'
        senders = [_json(sender) for sender in section.senders]
        routes = [_json(names) for names in section.routes]
        splits = _Splits(waits, section)
        texts: list[str] = []
        sizes: list[tuple[int, int, int]] = []
        for (
            kind,
            offset,
            at_ms,
            enqueued_ms,
            ttl_ms,
            size,
            attempts,
            sender,
            names,
            message,
            why,
            took_ms,
        ) in section.rows:
            text = (
                f'{self._begin(at_ms)},"event":"{event_name(kind)}"{queue},"offset":{offset}'
                f',"message":{self._message_id(message, offset)},"device":{senders[sender]}'
                f',"routes":{routes[names]},"bytes":{size}'
            )
            if ttl_ms is not None:
                text += f',"ttl_ms":{ttl_ms}'
            if kind in _TRIED or kind >= _LEFT:
                split = splits.of(sender, offset, enqueued_ms, at_ms)
                text += _waited(split, attempts if kind in _TRIED else 0)
            if kind == RowEvent.SENT:
                text += f',"attempt_ms":{took_ms}'
            if kind >= RowEvent.MOVED:
                text += _target(section, kind)
            if why is not None:
                text += f',"reason":{_json(why)}'
            texts.append(text + "}\n")
            sizes.append((kind, size, enqueued_ms))
            if len(texts) == PIECE_LINES:
                yield texts, sizes
                texts, sizes = [], []
        if texts:
            yield texts, sizes

    def _begin(self, hub_ms: int) -> str:
        seq = self.seq
        self.seq = seq + 1
        utc_ms = hub_ms + self._ahead_ms
        if self._day is not None:
            first = self._day * DAY_MS
            # What was committed after midnight belongs to the new day, though it happened before.
            utc_ms = min(max(utc_ms, first), first + DAY_MS - 1)
        second, millisecond = divmod(utc_ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = _second_text(second)
        return (
            f'{self._head}{seq},"time":"{self._second_text}.{millisecond:03d}Z","hub_ms":{hub_ms}'
        )

    def _message_id(self, message: int | str, offset: int) -> str:
        if isinstance(message, str):
            return _json(message)
        return f'"{self._message_prefix}{message or offset:x}"'


class _Splits:
    """What the rows of one section waited for; asked once for rows of the same age."""

    __slots__ = ("_key", "_known", "_may_differ", "_senders", "_waits")

    def __init__(self, waits: Waits, section: Section) -> None:
        self._waits = waits
        self._key = (section.endpoint_id, section.priority)
        self._senders = section.senders
        self._may_differ = waits.has_holds(self._key)
        self._known: dict[tuple[int, int], Split] = {}

    def of(self, sender: int, offset: int, from_ms: int, until_ms: int) -> Split:
        """Return the parts of one row's wait."""
        split = self._known.get((from_ms, until_ms))
        if split is None:
            split = self._waits.split(self._key, self._senders[sender], offset, from_ms, until_ms)
            if not self._may_differ:
                self._known[from_ms, until_ms] = split
        return split


def day_text(day: int) -> str:
    """Write a day, counted from 1970."""
    return date.fromordinal(_EPOCH_ORDINAL + day).isoformat()


def event_name(event: int) -> str:
    """Return the name of an event as lines have it."""
    return _NAMES[min(event, RowEvent.MOVED)]


def move_keys(endpoint_id: str, event: int, to_endpoint: str | None) -> dict[str, Any]:
    """Return the keys that say where rows went with an event, none where they went nowhere.

    Args:
        endpoint_id: Where they waited.
        event: What happened.
        to_endpoint: Where they were moved by command, None = they were not.
    """
    target = moved_target(event)
    if target is None:
        return {}
    return {
        "to_endpoint": to_endpoint or endpoint_id,
        "to_priority": shown_priority(target),
        "reason": "command" if to_endpoint else "recency",
    }


def shown_priority(priority: int) -> int | None:
    """Return a priority as lines have it: None = the default one."""
    return None if priority == DEFAULT_PRIORITY else priority


def _target(section: Section, event: int) -> str:
    keys = move_keys(section.endpoint_id, event, section.to_endpoint)
    return "".join([f',"{key}":{_json(value)}' for key, value in keys.items() if value is not None])


def _waited(split: Split, attempts: int) -> str:
    offline, behind, retry, rate = split
    tried = f',"attempts":{attempts}' if attempts else ""
    return (
        f'{tried},"waited_ms":{sum(split)},"offline_ms":{offline},"behind_ms":{behind}'
        f',"retry_ms":{retry},"rate_ms":{rate}'
    )


def _second_text(second: int) -> str:
    day, rest = divmod(second, 86_400)
    return f"{day_text(day)}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
