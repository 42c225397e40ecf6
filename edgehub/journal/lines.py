"""The lines of the journal: one JSON object for each event.

Source: docs/reference/journal-format.md. Owns the texts. Lines are made many at a time, from
columns, because there are as many as rows come and go.
Invariant: no line without a key that its event has, none with a key whose value would be null.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from orjson import dumps

from edgehub.journal.row_events import RowEvent, moved_target
from edgehub.message import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from edgehub.journal.events import Column, Run, Section
    from edgehub.journal.waits import Waits

VERSION: Final = 2
DAY_MS: Final = 86_400_000
PIECE_LINES: Final = 512
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
_WAITED: Final = b',"waited_ms":%d,"offline_ms":%d,"behind_ms":%d,"retry_ms":%d,"rate_ms":%d'
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
        self.message_prefix = message_prefix.encode()
        self.head = b'{"v":%d%b,"commit":' % (VERSION, _keys({"hub": hub_id, "store": store_id}))


class CommitLines:
    """Makes the lines of one commit.

    Args:
        origin: See `Origin`.
        number: Of the commit.
        hub_ms: Hub time of the commit.
        wall_ms: UTC of the commit.
        seq: Place of the first line in its commit.
    """

    __slots__ = ("_ahead_ms", "_head", "_message_prefix", "_times", "seq")

    def __init__(
        self, origin: Origin, number: int, hub_ms: int, wall_ms: int, *, seq: int = 0
    ) -> None:
        self._head = b'%b%d,"seq":' % (origin.head, number)
        self._message_prefix = origin.message_prefix
        self._ahead_ms = wall_ms - hub_ms
        self._times = _Times(self._ahead_ms, wall_ms // DAY_MS)
        self.seq = seq
        """Place of the next line."""

    def for_day(self, day: int | None) -> None:
        """Date the next lines on this day, counted from 1970, whatever their time was.

        None = the date is not known, their time is what it is.
        """
        self._times = _Times(self._ahead_ms, day)

    def line(self, event: str, hub_ms: int, **keys: Any) -> bytes:
        """Make a line that is not about one row; keys whose value is None are left out."""
        seq, self.seq = self.seq, self.seq + 1
        return b"%b%d%b%b}\n" % (
            self._head,
            seq,
            self._times[hub_ms],
            _keys({"event": event, **keys}),
        )

    def rows(self, section: Section, waits: Waits) -> Iterator[tuple[bytes, Run]]:
        """Make the lines of one section, some at a time.

        Yields:
            Lines, and the events that they are of.
        """
        senders = [dumps(sender) for sender in section.senders]
        routes = [dumps(names) for names in section.routes]
        splits = _Splits(waits, section)
        for run in section.runs(PIECE_LINES):
            kind = run.kind
            values = _Values()
            template = b"".join(
                (
                    self._head.replace(b"%", b"%%"),
                    values.each(b"%d", range(self.seq, self.seq + len(run))),
                    values.each(b"%b", map(self._times.__getitem__, run.times)),
                    _event(kind, section.endpoint_id, section.priority),
                    b',"offset":',
                    values.each(b"%d", run.offsets),
                    b',"message":',
                    self._message(values, run),
                    b',"device":',
                    values.column(run.senders, senders.__getitem__),
                    b',"routes":',
                    values.column(run.routes, routes.__getitem__),
                    b',"bytes":',
                    values.number(run.sizes),
                    values.column(run.ttls, _ttl),
                    values.column(run.attempts, _attempts) if kind in _TRIED else b"",
                    values.each(b"%b", splits.of(run)) if kind in _TRIED or kind >= _LEFT else b"",
                    b',"attempt_ms":' + values.number(run.took) if kind == RowEvent.SENT else b"",
                    _target(section, kind) if kind >= RowEvent.MOVED else b"",
                    values.column(run.reasons, _reason),
                    b"}\n",
                )
            )
            self.seq += len(run)
            # In C for all lines: a fifth of the time of a loop over them.
            yield b"".join(map(template.__mod__, zip(*values, strict=True))), run

    def _message(self, values: _Values, run: Run) -> bytes:
        """Return the placeholder of message ids, which nearly all rows have from their offset."""
        if run.keys == 0:
            prefix = self._message_prefix.replace(b"%", b"%%")
            return b'"' + prefix + values.each(b"%x", run.offsets) + b'"'
        keys = run.keys if isinstance(run.keys, list) else repeat(run.keys)
        return values.each(b"%b", map(self._message_id, keys, run.offsets))

    def _message_id(self, key: int | str, offset: int) -> bytes:
        if isinstance(key, str):
            return dumps(key)
        return b'"%b%x"' % (self._message_prefix, key or offset)


class _Values(list["Iterable[int | bytes]"]):
    """The values of a template: for each of its placeholders, one value a line."""

    def each(self, placeholder: bytes, values: Iterable[int | bytes]) -> bytes:
        """Add values, and return their placeholder."""
        self.append(values)
        return placeholder

    def column(self, column: Column, text_of: Callable[[Any], bytes]) -> bytes:
        """Add the texts of a column and return their placeholder, or return the text of all."""
        if isinstance(column, list):
            return self.each(b"%b", map(text_of, column))
        return text_of(column).replace(b"%", b"%%")

    def number(self, column: Column) -> bytes:
        """Add the numbers of a column and return their placeholder, or return that of all."""
        return self.each(b"%d", column) if isinstance(column, list) else b"%d" % column


class _Times(dict[int, bytes]):
    """The keys `time` and `hub_ms`, by hub time.

    Args:
        ahead_ms: UTC minus hub time.
        day: Date of the lines, days since 1970; None = it is not known.
    """

    def __init__(self, ahead_ms: int, day: int | None) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms
        self._day = day

    def __missing__(self, hub_ms: int) -> bytes:
        utc_ms = hub_ms + self._ahead_ms
        if self._day is not None:
            first = self._day * DAY_MS
            # What was committed after midnight belongs to the new day, though it happened before.
            utc_ms = min(max(utc_ms, first), first + DAY_MS - 1)
        second, millisecond = divmod(utc_ms, 1000)
        text = self[hub_ms] = b',"time":"%b.%03dZ","hub_ms":%d' % (
            _second_text(second),
            millisecond,
            hub_ms,
        )
        return text


class _Splits(dict[tuple[int, int], bytes]):
    """The keys of what the rows of one section waited for.

    Those of rows of the same age are made once, by when the rows were enqueued and left.
    """

    def __init__(self, waits: Waits, section: Section) -> None:
        super().__init__()
        self._waits = waits
        self._key = (section.endpoint_id, section.priority)
        self._senders = section.senders
        self._may_differ = waits.has_holds(self._key)

    def of(self, run: Run) -> Iterator[bytes]:
        """Return the keys of each row."""
        if not self._may_differ:
            return map(self.__getitem__, zip(run.enqueued, run.times, strict=True))
        places = run.senders if isinstance(run.senders, list) else repeat(run.senders)
        return map(self._made, places, run.offsets, run.enqueued, run.times)

    def __missing__(self, span: tuple[int, int]) -> bytes:
        text = self[span] = self._made(0, 0, *span)
        return text

    def _made(self, sender: int, offset: int, from_ms: int, until_ms: int) -> bytes:
        split = self._waits.split(self._key, self._senders[sender], offset, from_ms, until_ms)
        offline, behind, retry, rate = split
        return _WAITED % (sum(split), offline, behind, retry, rate)


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


def _keys(keys: dict[str, Any]) -> bytes:
    """Write keys behind others; those whose value is None are left out."""
    return b"".join(
        [
            b',"%b":%b' % (key.encode(), dumps(value))
            for key, value in keys.items()
            if value is not None
        ]
    )


@lru_cache(maxsize=256)
def _event(kind: int, endpoint_id: str, priority: int) -> bytes:
    """Return what lines of an event in a queue have in common, as part of a template."""
    keys = {
        "event": event_name(kind),
        "endpoint": endpoint_id,
        "priority": shown_priority(priority),
    }
    return _keys(keys).replace(b"%", b"%%")


def _target(section: Section, kind: int) -> bytes:
    keys = move_keys(section.endpoint_id, kind, section.to_endpoint)
    return _keys(keys).replace(b"%", b"%%")


def _ttl(ttl_ms: int | None) -> bytes:
    return b"" if ttl_ms is None else b',"ttl_ms":%d' % ttl_ms


def _attempts(attempts: int) -> bytes:
    return b',"attempts":%d' % attempts if attempts else b""


def _reason(reason: str | None) -> bytes:
    return b"" if reason is None else b',"reason":' + dumps(reason)


@lru_cache(maxsize=16)
def _second_text(second: int) -> bytes:
    day, rest = divmod(second, 86_400)
    return f"{day_text(day)}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}".encode()
