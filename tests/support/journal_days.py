"""Days of a hub as its journal would have them: strict priority, a thin link, outages, expiry.

A model in steps of one second, seeded, quick enough for ten million lines. The equation of each
day holds, and midnights agree. All lines of a commit have one time, as those of a hub.
"""

from __future__ import annotations

import gzip
import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from tests.support.journal_lines import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from random import Random

DAY_S: Final = 86_400
COMMIT_LINES_MAX: Final = 16
DEVICES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueModel:
    """One queue: who feeds it, how much of the hub's rows, and for how long a row may wait."""

    route: str
    priority: int | None
    share: float
    ttl_s: int
    bytes_each: int
    endpoint: str = "upstream"
    recency_s: int | None = None


QUEUES: Final = (
    QueueModel(route="alarms", priority=0, share=0.10, ttl_s=86_400, bytes_each=180),
    QueueModel(route="state", priority=1, share=0.35, ttl_s=3_600, bytes_each=240, recency_s=900),
    QueueModel(route="raw", priority=5, share=0.35, ttl_s=1_200, bytes_each=410),
    QueueModel(route="rest", priority=None, share=0.15, ttl_s=7_200, bytes_each=300),
    QueueModel(
        route="keep", priority=None, share=0.05, ttl_s=0, bytes_each=500, endpoint="archive"
    ),
)
"""Best first per endpoint; a row of `recency_s` falls back to the queue behind it."""


@dataclass(slots=True)
class _Row:
    model: QueueModel
    offset: int
    enqueued_ms: int
    device: int
    expires_ms: float
    offline_ms: int
    behind_ms: int
    retry_ms: int
    attempts: int = 0


@dataclass(slots=True)
class _Queue:
    model: QueueModel
    rows: deque[_Row] = field(default_factory=deque)
    behind_ms: int = 0
    retry_ms: int = 0
    held_until_ms: int = -1

    def keys(self) -> str:
        priority = "" if self.model.priority is None else f',"priority":{self.model.priority}'
        return f'"endpoint":"{self.model.endpoint}"{priority}'


class HubModel:
    """One hub over consecutive days.

    Args:
        hub: Hub id.
        rows: Messages a day.
        random: Where chance comes from.
        outages: Pairs of seconds of the day in which the upstream link is down.
        off: Seconds of the day in which the hub does not run.
        is_cut: Whether power was cut then: the hub had no time to write what waited.
        clock: Second of the day from which on the clock is ahead by how many seconds, in order.
        headroom: Rows that the link takes, per row that arrives; below 1 a backlog grows.
    """

    def __init__(
        self,
        hub: str,
        rows: int,
        random: Random,
        *,
        outages: Sequence[tuple[int, int]] = ((7_200, 10_800), (50_000, 51_200)),
        off: tuple[int, int] | None = None,
        is_cut: bool = False,
        clock: Sequence[tuple[int, int]] = (),
        headroom: float = 1.15,
    ) -> None:
        self.hub = hub
        self.rows = rows
        self.random = random
        self.outages = outages
        self.off = off
        self.is_cut = is_cut
        self.clock = clock
        self.headroom = headroom
        self.store = f"{random.getrandbits(64):016x}"
        self.queues = [_Queue(model) for model in QUEUES]
        self.hub_ms = random.randrange(10**9)
        self.offline_ms = 0
        self._commit = random.randrange(10**6)
        self._offset = 0

    def write_day(
        self, export: Path, date: str, part: tuple[int, int] = (0, DAY_S), *, ends: bool = True
    ) -> list[Segment]:
        """Write the segments of one date, one an hour.

        Args:
            export: The export.
            date: The date.
            part: Seconds of the day in which the hub has this database file.
            ends: Whether it has the time to write what waits in the end.
        """
        start = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
        folder = export / f"date={date}" / f"hub={self.hub}"
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        hours = itertools.groupby(self._day(start, *part, ends=ends), key=lambda line: line[0])
        for _, lines in hours:
            name = f"{self._commit:012}-{self.store[:8]}.jsonl.gz"
            first = self._commit + 1
            with gzip.open(folder / name, "wt", compresslevel=1, encoding="utf-8") as file:
                count = self._write(file, lines)
            written.append(Segment(folder / name, count, first, self._commit))
        return written

    def _write(self, file: TextIO, lines: Iterator[tuple[int, int, str, str]]) -> int:
        head = f'{{"v":2,"hub":"{self.hub}","store":"{self.store}","commit":'
        count = 0
        seq, before, place = 0, -1, ""
        for _, hub_ms, time, rest in lines:
            if seq == COMMIT_LINES_MAX or hub_ms // 250 != before:
                self._commit += 1
                seq, before = 0, hub_ms // 250
                place = f'"time":"{time}","hub_ms":{hub_ms}'
            file.write(f'{head}{self._commit},"seq":{seq},{place},{rest}}}\n')
            seq += 1
            count += 1
        return count

    def _day(
        self, start: datetime, first: int, end: int, *, ends: bool
    ) -> Iterator[tuple[int, int, str, str]]:
        """Return (hour, hub time, time, rest of the line) of each line of a part of the day."""
        midnight_ms = self.hub_ms - first * 1000
        begun = self._carried("start") if first else self._carried("in")
        for rest in [*begun, *self._links(first)]:
            yield first // 3600, self.hub_ms, f"{self._time(start, first)}.000Z", rest
        for second in range(first, end):
            rests = list(self._second(second, midnight_ms + second * 1000))
            if not rests:
                continue
            at = self._time(start, second)
            for index, rest in enumerate(rests):
                ms = index * 1000 // len(rests)
                yield second // 3600, midnight_ms + second * 1000 + ms, f"{at}.{ms:03}Z", rest
        self.hub_ms = midnight_ms + end * 1000
        if ends:
            at = f"{self._time(start, end - 1)}.999Z"
            for rest in self._carried("out" if end == DAY_S else "stop"):
                yield (end - 1) // 3600, self.hub_ms - 1, at, rest

    def _time(self, start: datetime, second: int) -> str:
        """Return the time of day that the clock has, to the second."""
        ahead_s = next((each[1] for each in reversed(self.clock) if each[0] <= second), 0)
        at_s = second + ahead_s
        assert 0 <= at_s < DAY_S
        return f"{start:%Y-%m-%d}T{at_s // 3600:02}:{at_s // 60 % 60:02}:{at_s % 60:02}"

    def _carried(self, edge: str) -> Iterator[str]:
        for queue in self.queues:
            if queue.rows:
                size = sum(row.model.bytes_each for row in queue.rows)
                yield (
                    f'"event":"carried",{queue.keys()},"edge":"{edge}",'
                    f'"rows":{len(queue.rows)},"bytes":{size}'
                )

    def _links(self, second: int) -> Iterator[str]:
        state = "up" if self._up(second) else "down"
        yield f'"event":"link","endpoint":"upstream","state":"{state}"'
        yield '"event":"link","endpoint":"archive","state":"up"'

    def _up(self, second: int) -> bool:
        return not any(first <= second < last for first, last in self.outages)

    def _second(self, second: int, now_ms: int) -> Iterator[str]:
        if self.off and self.off[0] <= second < self.off[1]:
            if second == self.off[0] and not self.is_cut:
                yield from self._carried("stop")
            self.offline_ms += 1000
            return
        if self.off and second == self.off[1]:
            yield from self._carried("start")
            yield from self._links(second)
        up = self._up(second)
        if up != self._up(second - 1):
            yield f'"event":"link","endpoint":"upstream","state":"{"up" if up else "down"}"'
        yield from self._arrivals(second, now_ms)
        yield from self._leave_by_age(now_ms)
        yield from self._serve(now_ms, up=up)

    def _arrivals(self, second: int, now_ms: int) -> Iterator[str]:
        # Twice the rows at noon, none to speak of at midnight.
        peak = 2.0 * (1 - abs(second / DAY_S - 0.5) * 2)
        for queue in self.queues:
            mean = self.rows * queue.model.share / DAY_S * peak
            count = int(mean) + (self.random.random() < mean % 1)
            for _ in range(count):
                yield self._enqueue(queue, now_ms)
        if self.random.random() < 0.0005:
            keys = '"message":"r","device":"press-9","bytes":300000,"reason":"too_large"'
            yield f'"event":"refused",{keys}'

    def _enqueue(self, queue: _Queue, now_ms: int) -> str:
        self._offset += 1
        model = queue.model
        row = _Row(
            model,
            self._offset,
            now_ms,
            int(self.random.random() * DEVICES),
            now_ms + model.ttl_s * 1000 if model.ttl_s else float("inf"),
            self.offline_ms,
            queue.behind_ms,
            queue.retry_ms,
        )
        queue.rows.append(row)
        return f'"event":"enqueued",{self._row_keys(queue, row)}'

    def _leave_by_age(self, now_ms: int) -> Iterator[str]:
        for index, queue in enumerate(self.queues):
            while queue.rows and queue.rows[0].expires_ms <= now_ms:
                row = queue.rows.popleft()
                keys = f"{self._row_keys(queue, row)}{self._wait(queue, row, now_ms)}"
                yield f'"event":"expired",{keys}'
            recency_s = queue.model.recency_s
            while (
                recency_s and queue.rows and now_ms - queue.rows[0].enqueued_ms > recency_s * 1000
            ):
                row = queue.rows.popleft()
                target = self.queues[index + 1]
                yield (
                    f'"event":"moved",{self._row_keys(queue, row)}{self._wait(queue, row, now_ms)}'
                    f',"to_endpoint":"upstream","to_priority":{target.model.priority}'
                    f',"reason":"recency"'
                )
                row.behind_ms += target.behind_ms - queue.behind_ms
                row.retry_ms += target.retry_ms - queue.retry_ms
                target.rows.append(row)

    def _serve(self, now_ms: int, *, up: bool) -> Iterator[str]:
        capacity: dict[str, float] = defaultdict(lambda: self.rows * self.headroom / DAY_S)
        waiting: set[str] = set()
        for queue in self.queues:
            endpoint = queue.model.endpoint
            if endpoint == "upstream" and not up:
                continue
            room = capacity[endpoint]
            count = min(len(queue.rows), int(room) + (self.random.random() < room % 1))
            if now_ms < queue.held_until_ms:
                queue.retry_ms += 1000
                count = 0
            elif count and self.random.random() < 0.0002:
                queue.held_until_ms = now_ms + 30_000
                row = queue.rows[0]
                row.attempts += 1
                keys = f"{self._row_keys(queue, row)}{self._wait(queue, row, now_ms)}"
                yield f'"event":"retried",{keys},"reason":"throttled: 30 s"'
                count = 0
            for _ in range(count):
                yield self._leave(queue, now_ms)
            capacity[endpoint] = max(0.0, room - count)
            if endpoint in waiting:
                queue.behind_ms += 1000
            if queue.rows:
                waiting.add(endpoint)
        if not up:
            self.offline_ms += 1000

    def _leave(self, queue: _Queue, now_ms: int) -> str:
        row = queue.rows.popleft()
        row.attempts += 1
        keys = f"{self._row_keys(queue, row)}{self._wait(queue, row, now_ms)}"
        if self.random.random() < 0.0003:
            return f'"event":"dead_lettered",{keys},"reason":"rejected: 400"'
        if self.random.random() < 0.0003:
            return f'"event":"dropped",{keys},"reason":"by_value: queue_bytes_max"'
        return f'"event":"sent",{keys}'

    def _row_keys(self, queue: _Queue, row: _Row) -> str:
        model = row.model
        ttl = f',"ttl_ms":{model.ttl_s * 1000}' if model.ttl_s else ""
        attempts = f',"attempts":{row.attempts}' if row.attempts else ""
        return (
            f'{queue.keys()},"offset":{row.offset},"message":"{self.hub}-{row.offset:x}",'
            f'"device":"press-{row.device}","routes":["{model.route}"],'
            f'"bytes":{model.bytes_each}{ttl}{attempts}'
        )

    def _wait(self, queue: _Queue, row: _Row, now_ms: int) -> str:
        rest = waited = now_ms - row.enqueued_ms
        offline = min(rest, self.offline_ms - row.offline_ms if self._is_upstream(queue) else 0)
        rest -= offline
        behind = min(rest, queue.behind_ms - row.behind_ms)
        rest -= behind
        retry = min(rest, queue.retry_ms - row.retry_ms)
        return (
            f',"waited_ms":{waited},"offline_ms":{offline},"behind_ms":{behind},'
            f'"retry_ms":{retry},"rate_ms":{rest - retry}'
        )

    def _is_upstream(self, queue: _Queue) -> bool:
        return queue.model.endpoint == "upstream"
