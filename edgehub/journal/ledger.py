"""The journal's ledger: from the events of commits, in order, to lines and the rows that wait.

Owns the state at one commit: rows and bytes of each queue, the state of links, the date, what rows
may have waited for. Pure. Invariants: the lines follow from the state and the events alone, so what
a crash cut off is written again identically; at each midnight the figures of every queue are
carried over to the next date.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.journal.ages import STEP_MS, Ages
from edgehub.journal.lines import DAY_MS, CommitLines, event_name, move_keys, shown_priority
from edgehub.journal.row_events import PUMP_OFFLINE, PUMP_UNSERVED, RowEvent, moved_target
from edgehub.journal.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgehub.journal.events import CommitEvents, Run, Stretches
    from edgehub.journal.lines import Origin
    from edgehub.journal.row_events import Counts, Note
    from edgehub.journal.waits import Key, Split

HOUR_MS: Final = 3_600_000
DAYS_MISSED_MAX: Final = 400
"""A clock that steps further was set; the days between get no lines."""
STEP_BACK_MAX_MS: Final = 3_600_000
"""A clock that is set back over midnight by less does not bring the old date back."""

_LINKS: Final = {PUMP_UNSERVED: "unserved", PUMP_OFFLINE: "down"}

_EFFECT: Final = {
    RowEvent.ENQUEUED.value: 1,
    RowEvent.SENT.value: -1,
    RowEvent.EXPIRED.value: -1,
    RowEvent.DEAD_LETTERED.value: -1,
    RowEvent.RETRIED.value: 0,
    RowEvent.REQUEUED.value: 1,
    RowEvent.DROPPED.value: -1,
    RowEvent.PURGED.value: -1,
    RowEvent.LOST.value: -1,
    RowEvent.MOVED.value: -1,
}


class Piece(Struct, frozen=True):
    """Some lines of one commit.

    Attributes:
        day: Date they belong to, days since 1970; None = it is not known.
        hour: UTC hour of the commit, or the last one of the day, hours since 1970; of hub time
            where the date is not known.
        commit: Number of the commit.
        text: Whole lines.
    """

    day: int | None
    hour: int
    commit: int
    text: bytes


class Ledger:
    """The account of events: lines of commits, and the rows that still wait.

    Attributes:
        day: Date of the last commit that has one, days since 1970; None = there was none.
    """

    def __init__(self, origin: Origin) -> None:
        self.commit = 0
        self.hub_ms = 0
        self.wall_ms = 0
        self.gauges: dict[Key, tuple[int, int]] = {}
        """Rows and bytes that wait, by queue."""
        self.corrections = 0
        """Starts at which the file held other rows than the events had left."""
        self._origin = origin
        self.day: int | None = None
        self._guessed = False
        self._seq = 0
        self._stopped = True
        self._links: dict[str, str] = {}
        self._waits = Waits()
        self._ages: dict[Key, Ages] = {}
        self._settings: dict[str, Any] | None = None

    def document(self) -> list[Any]:
        """Return what JSON can hold, for `load`."""
        gauges = [[*key, *figures] for key, figures in self.gauges.items()]
        state: list[Any] = [self.commit, self.hub_ms, self.wall_ms, self.day, self._stopped]
        state += [self._guessed, self._seq]
        ages = [[*key, *entry.document()] for key, entry in self._ages.items()]
        state += [gauges, self._links, self._waits.document(), self.corrections]
        return [*state, ages, self._settings]

    @classmethod
    def load(cls, origin: Origin, document: list[Any]) -> Ledger:
        """Load a stored state."""
        ledger = cls(origin)
        ledger.commit, ledger.hub_ms, ledger.wall_ms, ledger.day, ledger._stopped = document[:5]
        ledger._guessed, ledger._seq = document[5:7]
        gauges, ledger._links, waits, ledger.corrections, *later = document[7:]
        ledger.gauges = {(name, number): (rows, size) for name, number, rows, size in gauges}
        ledger._waits = Waits.load(waits)
        if later:
            ages, ledger._settings = later
            ledger._ages = {(name, number): Ages.load(entry) for name, number, *entry in ages}
        ledger._settle_ages()
        return ledger

    def forget_day(self) -> None:
        """Record that some lines will never have a date: the next date begins with what waits."""
        self.day = None

    def split(self, key: Key, sender: str, offset: int, from_ms: int, until_ms: int) -> Split:
        """Return what a row has waited for up to the last commit; see `Waits.split`."""
        return self._waits.split(key, sender, offset, from_ms, until_ms)

    def settle(self, number: int, events: CommitEvents) -> Iterator[Piece]:
        """Return the lines that the end of the last life has not written, dated as it ended.

        Called before the first commit whose date is not known; `take` returns what follows.
        """
        self._seq, self.commit = 0, number
        start = next((note for note in events.notes if note[0] == "start"), None)
        if start is None or self._guessed or self.day is None:
            return
        self._find(start, events.notes)
        _, last_hub_ms, last_wall_ms, _ = start
        lines = CommitLines(self._origin, number, last_hub_ms, last_wall_ms)
        for texts in self._resume(lines, last_hub_ms, last_wall_ms, dated=True):
            if texts:
                yield self._piece(texts, last_wall_ms // HOUR_MS)
        self._seq = lines.seq

    def take(
        self, number: int, events: CommitEvents, stretches: Stretches | None = None
    ) -> Iterator[Piece]:
        """Record the events of one commit, and yield its lines, some at a time.

        Args:
            number: Of the commit.
            events: What happened.
            stretches: Times of what was committed under a clock that was not trusted; None = the
                lines of such a commit have no date.
        """
        stretches = events.stretches() or stretches
        wall_ms = events.wall_ms
        if not events.trusted and stretches is not None:
            wall_ms = stretches.utc_ms(events.hub_ms)
        seq = self._seq if number == self.commit else 0
        lines = CommitLines(self._origin, number, events.hub_ms, wall_ms, seq=seq)
        self.commit = number
        if events.trusted or stretches is not None:
            hour, dated = wall_ms // HOUR_MS, True
        else:
            hour, dated = events.hub_ms // HOUR_MS, False
            lines.for_day(None)
        for texts in self._enter(lines, events, wall_ms, stretches, dated=dated):
            if texts:
                yield (
                    self._piece(texts, hour)
                    if dated
                    else Piece(None, hour, number, b"".join(texts))
                )
        self._seq = lines.seq
        self._guessed = not events.trusted
        self.hub_ms, self.wall_ms = events.hub_ms, wall_ms

    def _piece(self, texts: list[bytes], hour: int) -> Piece:
        assert self.day is not None
        return Piece(self.day, min(hour, self.day * 24 + 23), self.commit, b"".join(texts))

    def _enter(
        self,
        lines: CommitLines,
        events: CommitEvents,
        wall_ms: int,
        stretches: Stretches | None,
        *,
        dated: bool,
    ) -> Iterator[list[bytes]]:
        start = next((note for note in events.notes if note[0] == "start"), None)
        found: list[Counts] = []
        if start is not None:
            found = self._find(start, events.notes)
            _, last_hub_ms, last_wall_ms, _ = start
            if self._guessed and stretches is not None:
                last_wall_ms = stretches.utc_ms(max(last_hub_ms, self.hub_ms))
            yield from self._resume(lines, last_hub_ms, last_wall_ms, dated=dated)
        if dated:
            yield from self._to_date(lines, events.hub_ms, wall_ms, live=start is None)
        if start is not None:
            yield self._carried(lines, "start", events.hub_ms)
            yield self._sums(lines, events.hub_ms, found)
        yield self._note_states(lines, events.notes)
        for section in events.sections:
            for text, run in lines.rows(section, self._waits):
                self._count_run((section.endpoint_id, section.priority), run, section.to_endpoint)
                yield [text]
        yield self._sums(lines, events.hub_ms, events.counts)
        yield self._other(lines, events)
        yield self._end(lines, events)

    def _end(self, lines: CommitLines, events: CommitEvents) -> list[bytes]:
        """Write what waits, if the hub ends with this commit."""
        if any(note[0] == "stop" for note in events.notes):
            self._stopped = True
            self._waits.stop(events.hub_ms)
            return self._carried(lines, "stop", events.hub_ms)
        if events.sections or events.counts:
            self._stopped = False
        return []

    def _find(self, start: Note, notes: list[Note]) -> list[Counts]:
        """Take over what was found in the file, and give what damage has changed, by queue.

        That is what is lost, and what is parked because its queue is not known any more.
        """
        found = {(name, number): (rows, size) for name, number, rows, size in start[3] if rows}
        before = {key: figures for key, figures in self.gauges.items() if figures[0]}
        missing: dict[Key, tuple[int, int]] = {}
        parked: dict[Key, tuple[int, int]] = {}
        for losses in [note[1] for note in notes if note[0] == "lost"]:
            missing = {(name, number): (rows, size) for name, number, rows, size in losses}
            for key, (rows, size) in before.items():
                left_rows, left_size = found.get(key, (0, 0))
                # More may be missing than could be read of the damaged file.
                if rows - left_rows > missing.get(key, (0, 0))[0]:
                    missing[key] = (rows - left_rows, max(0, size - left_size))
            if self.day is not None:
                parked = {key: figures for key, figures in found.items() if key not in before}
        self.gauges = {key: figures for key, figures in found.items() if key not in parked}
        for key, (rows, size) in missing.items():
            left_rows, left_size = found.get(key, (0, 0))
            self.gauges[key] = (left_rows + rows, left_size + size)
        self.corrections += self.day is not None and self.gauges != before
        self._settle_ages()
        self._links = {}
        return [
            *((*key, RowEvent.LOST.value, *missing[key], None) for key in sorted(missing)),
            *((*key, RowEvent.ENQUEUED.value, *parked[key], None) for key in sorted(parked)),
        ]

    def _resume(
        self, lines: CommitLines, last_hub_ms: int, last_wall_ms: int, *, dated: bool
    ) -> Iterator[list[bytes]]:
        """Write what the end of the last life did not write, before anything else happens."""
        if self._stopped:
            return
        last_hub_ms = max(last_hub_ms, self.hub_ms)
        if dated and self.day is not None:
            if not self._guessed:
                last_wall_ms = max(last_wall_ms, self.wall_ms)
            yield from self._to_date(lines, last_hub_ms, last_wall_ms, live=False)
        self._waits.stop(last_hub_ms)
        self._stopped = True
        if not dated or self.day is not None:
            yield self._carried(lines, "stop", last_hub_ms)

    def _to_date(
        self, lines: CommitLines, hub_ms: int, wall_ms: int, *, live: bool
    ) -> Iterator[list[bytes]]:
        """Bring the date up to a commit, over every midnight between."""
        day = wall_ms // DAY_MS
        before = self.day
        if before is None:
            self.day = day
            lines.for_day(day)
            yield self._carried(lines, "in", hub_ms)
        elif day < before and wall_ms >= before * DAY_MS - STEP_BACK_MAX_MS:
            day = before
        elif day < before or day - before > DAYS_MISSED_MAX:
            yield from self._midnight(lines, day, hub_ms)
        else:
            for next_day in range(before + 1, day + 1):
                midnight_ms = hub_ms - (wall_ms - next_day * DAY_MS)
                yield from self._midnight(lines, next_day, midnight_ms)
        self.day = day
        lines.for_day(day)
        if live and before is not None and day != before:
            yield [
                lines.line("link", hub_ms, endpoint=endpoint, state=state)
                for endpoint, state in self._links.items()
            ]
            if self._settings is not None:
                yield [lines.line("settings", hub_ms, **self._settings)]

    def _midnight(self, lines: CommitLines, next_day: int, hub_ms: int) -> Iterator[list[bytes]]:
        assert self.day is not None
        lines.for_day(self.day)
        yield self._carried(lines, "out", hub_ms - 1)
        self.day = next_day
        lines.for_day(next_day)
        yield self._carried(lines, "in", hub_ms)

    def _carried(self, lines: CommitLines, edge: str, hub_ms: int) -> list[bytes]:
        return [
            lines.line(
                "carried",
                hub_ms,
                endpoint=name,
                priority=shown_priority(number),
                edge=edge,
                rows=rows,
                bytes=size,
                ages=self._ages[name, number].of(hub_ms) if edge == "in" else None,
                age_step_ms=self._ages[name, number].step_ms if edge == "in" else None,
            )
            for (name, number), (rows, size) in sorted(self.gauges.items())
            if rows
        ]

    def _settle_ages(self) -> None:
        """Correct ages to the rows that wait, where those were found and not followed."""
        for key in self._ages.keys() - self.gauges.keys():
            del self._ages[key]
        for key, (rows, _) in self.gauges.items():
            ages = self._ages.setdefault(key, Ages())
            ages.change(self.hub_ms, rows - sum([each for _, each in ages.of(self.hub_ms)]))

    def _note_states(self, lines: CommitLines, notes: list[Note]) -> list[bytes]:
        texts: list[bytes] = []
        for kind, *values in notes:
            match kind:
                case "pump":
                    endpoint_id, at_ms, state = values
                    self._waits.change(endpoint_id, max(state, PUMP_OFFLINE), at_ms)
                    link = _LINKS.get(state, "up")
                    if self._links.get(endpoint_id) != link:
                        self._links[endpoint_id] = link
                        texts.append(lines.line("link", at_ms, endpoint=endpoint_id, state=link))
                case "traffic":
                    endpoint_id, at_ms, size = values
                    texts.append(lines.line("traffic", at_ms, endpoint=endpoint_id, bytes=size))
                case "settings":
                    at_ms, self._settings = values
                    texts.append(lines.line("settings", at_ms, **values[1]))
                case "start":
                    self._stopped = False
                case _:
                    self._note_waits(kind, values)
        return texts

    def _note_waits(self, kind: str, values: list[Any]) -> None:
        match kind:
            case "delay":
                endpoint_id, priority, at_ms, begins = values
                self._waits.hold((endpoint_id, priority), None, at_ms, begins=bool(begins))
            case "hold":
                endpoint_id, priority, who, at_ms, begins = values
                self._waits.hold((endpoint_id, priority), who, at_ms, begins=bool(begins))
            case "aged":
                self._waits.age(*values)
                for ages in self._ages.values():
                    ages.move_back(*values)
            case "blur":
                self._waits.blur(values[0])
            case _:
                pass  # written elsewhere

    def _sums(self, lines: CommitLines, hub_ms: int, counts: Sequence[Counts]) -> list[bytes]:
        texts: list[bytes] = []
        for name, number, event, rows, size, to_endpoint in counts:
            texts.append(
                lines.line(
                    event_name(event),
                    hub_ms,
                    endpoint=name,
                    priority=shown_priority(number),
                    bytes=size,
                    count=rows,
                    **move_keys(name, event, to_endpoint),
                )
            )
            self._count((name, number), event, size, to_endpoint, {hub_ms: rows})
        return texts

    def _other(self, lines: CommitLines, events: CommitEvents) -> list[bytes]:
        texts: list[bytes] = []
        for kind, *values in events.notes:
            if kind == "refused":
                device, count, size, reason = values
                keys = {"device": device or None, "bytes": size, "reason": reason}
            elif kind == "dead_purged":
                name, number, count, size, reason = values
                keys = {"endpoint": name, "priority": shown_priority(number)}
                keys |= {"bytes": size, "reason": reason}
            else:
                continue
            texts.append(lines.line(kind, events.hub_ms, **keys, count=count))
        return texts

    def _count_run(self, key: Key, run: Run, to_endpoint: str | None) -> None:
        size = sum(run.sizes) if isinstance(run.sizes, list) else run.sizes * len(run)
        since = run.enqueued
        if min(since) // STEP_MS == max(since) // STEP_MS:
            steps = {since[0] // STEP_MS: len(run)}
        else:
            steps = Counter([enqueued_ms // STEP_MS for enqueued_ms in since])
        self._count(
            key,
            run.kind,
            size,
            to_endpoint,
            {step * STEP_MS: rows for step, rows in steps.items()},
        )

    def _count(
        self, key: Key, event: int, size: int, to_endpoint: str | None, rows_since: dict[int, int]
    ) -> None:
        """Count an event of some rows; `rows_since` is their number by the time of enqueueing."""
        effect = _EFFECT[min(event, RowEvent.MOVED)]
        target = moved_target(event)
        changes = [(key, effect)]
        if target is not None:
            changes.append(((to_endpoint or key[0], target), 1))
        for queue, sign in changes:
            if sign:
                for enqueued_ms, rows in rows_since.items():
                    self._age(queue, enqueued_ms, sign * rows)
                self._add(queue, sign * sum(rows_since.values()), sign * size)

    def _age(self, key: Key, enqueued_ms: int, rows: int) -> None:
        ages = self._ages.get(key)
        if ages is None:
            ages = self._ages[key] = Ages()
        ages.change(enqueued_ms, rows)

    def _add(self, key: Key, rows: int, size: int) -> None:
        before = self.gauges.get(key, (0, 0))
        after = (before[0] + rows, before[1] + size)
        if any(after):
            # Sums come in any order, so rows may be even before bytes are.
            self.gauges[key] = after
        else:
            self.gauges.pop(key, None)
            self._ages.pop(key, None)
            self._waits.emptied(key)
