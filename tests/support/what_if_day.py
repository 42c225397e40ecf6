"""Some hours of a real store, pump and journal over a thin link, on a manual clock.

Owns the plan of a day (what comes when, how rows are treated, what the link does) and the parcels
that its journal makes, without Spark.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from analytics.schemas import DEFAULT_PRIORITY
from analytics.what_if.recorded import (
    CAME,
    CARRIED,
    DROPPED,
    END,
    EXPIRED,
    LINK,
    REMOVED,
    SENT,
    SETTINGS,
    STEP_MS,
    WAITED,
    Parcel,
)
from edgehub.clock import ManualClock
from edgehub.message import UPSTREAM, DeliveryRules, Priority
from edgehub.pump.options import PumpOptions
from edgehub.pump.pump import Pump
from edgehub.store import StoreOptions
from edgehub.store.caps import Caps
from edgehub.store.options import ClockTrust
from tests.support.endpoints import ThinLinkEndpoint
from tests.support.journal import journaling
from tests.support.journal_format import read_folder
from tests.support.memory_queue import NoCreations
from tests.support.stores import a_message, a_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MIDNIGHT_MS: Final = 20_000 * 86_400_000

Treatments = dict[str, tuple[int, float]]
"""Priority and time to live in seconds by route."""

TREATMENTS: Final[Treatments] = {
    "alarm": (0, 1800.0),
    "state": (3, 450.0),
    "raw": (7, 300.0),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One day.

    Attributes:
        seed: Of what comes.
        seconds: Length.
        rate_bytes_s: Of the link.
        treatments: By route.
        windows: Begins and ends in seconds of the times in which the link is open, None = all day.
        queue_rows_max: Limit of each queue, 0 = none.
    """

    seed: int
    seconds: int = 1500
    rate_bytes_s: float = 300.0
    treatments: Mapping[str, tuple[int, float]] = field(default_factory=lambda: TREATMENTS)
    windows: Sequence[tuple[int, int]] | None = None
    queue_rows_max: int = 0

    def arrivals(self) -> dict[int, list[tuple[str, bytes]]]:
        """Return routes and bodies by second: quiet, then more than the link takes, then quiet."""
        rng = random.Random(self.seed)
        shares = {"alarm": 0.05, "state": 0.5, "raw": 0.9}
        found: dict[int, list[tuple[str, bytes]]] = {}
        for second in range(self.seconds):
            load = 2.2 if 0.15 < second / self.seconds < 0.6 else 0.25
            for route, share in shares.items():
                expected = share * load * rng.choice((0.2, 1.0, 1.8))
                for _ in range(int(expected + rng.random())):
                    body = b"x" * rng.randrange(60, 220)
                    found.setdefault(second, []).append((route, body))
        return found

    def outage(self) -> tuple[int, int]:
        """Return the second in which the link goes down, and that in which it is up again."""
        rng = random.Random(self.seed + 1)
        begin = int(self.seconds * rng.uniform(0.3, 0.6))
        return begin, begin + int(self.seconds * 0.08)

    def is_up(self, second: int) -> bool:
        """Return whether the link takes anything."""
        down, up = self.outage()
        is_open = self.windows is None or any(a <= second < b for a, b in self.windows)
        return is_open and not down <= second < up


async def live(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Run a hub through a day and return the lines of its journal."""
    clock = ManualClock(wall_ms=MIDNIGHT_MS)
    caps = Caps(queue_rows=plan.queue_rows_max)
    options = StoreOptions(journal=True, clock_trust=ClockTrust.ALWAYS, caps=caps)
    async with journaling(folder / "queue.db", clock=clock, options=options) as it:
        store = it.hub.store
        endpoint = ThinLinkEndpoint(
            clock, rate_bytes_s=plan.rate_bytes_s, delay_s=0.2, on_arrival=lambda _row: None
        )
        pump = Pump(
            endpoint,
            queues=lambda: store.queues.of(UPSTREAM),
            rules=lambda _row: DeliveryRules(),
            clock=clock,
            now_ms=store.hub_time.now_ms,
            rng=random.Random(1),
            options=PumpOptions(),
            close_counts=store.suspects,
            dependency_tracker=NoCreations(),
            listener=it.feed,
        )
        store.queues.watch(UPSTREAM, pump.rows_ready)
        results = {
            route: a_result(Priority(priority), ttl_s=ttl_s, routes=(route,))
            for route, (priority, ttl_s) in plan.treatments.items()
        }
        arrivals = plan.arrivals()
        is_up = True
        async with asyncio.TaskGroup() as group:
            running = group.create_task(pump.run())
            for second in range(plan.seconds):
                if is_up != plan.is_up(second):
                    is_up = not is_up
                    if is_up:
                        endpoint.revive()
                    else:
                        endpoint.cut()
                for route, body in arrivals.get(second, ()):
                    it.hub.send(a_message("dev-1", body), results[route])
                await clock.advance(1)
                # Answered by the thread that does all that was asked of the file before.
                await store.database.run(lambda conn: conn.execute("SELECT 1").fetchone())
            running.cancel()
        await store.writer.flush()
        await it.journal.write_out(close=True)
    return read_folder(folder / "journal")


def counts(lines: Iterable[dict[str, Any]], event: str) -> Counter[str]:
    """Count rows by winning route."""
    found = Counter[str]()
    for line in lines:
        if line["event"] == event:
            found[line["routes"][0]] += line.get("count", 1)
    return found


def parcels_of(lines: Iterable[dict[str, Any]], midnight_ms: int) -> list[Parcel]:
    """Add lines up to parcels by a plain loop: what `analytics.what_if.parcels` does with Spark.

    Args:
        lines: Of one hub and date.
        midnight_ms: Hub time at 00:00.
    """
    sums = _Sums()
    for line in lines:
        at_ms, wait_ms = line["hub_ms"], line.get("waited_ms", 0)
        sums.add_event(line, at_ms, wait_ms, midnight_ms)
        if "waited_ms" in line and line["event"] != "retried" and wait_ms > at_ms - midnight_ms:
            ttl = {"ttl_ms": line.get("ttl_ms")}
            sums.add(line, WAITED, at_ms - wait_ms, **ttl)
            if line["event"] == "moved":
                queue = {
                    "endpoint": line["to_endpoint"],
                    "priority": line.get("to_priority", DEFAULT_PRIORITY),
                }
                sums.add(line, WAITED, at_ms - wait_ms, sign=-1, **ttl, **queue)
    return sums.parcels()


class _Sums:
    """Rows and bytes by the key of parcels."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[Any, ...]] = Counter()
        self._bytes: Counter[tuple[Any, ...]] = Counter()

    def add_event(self, line: dict[str, Any], at_ms: int, wait_ms: int, midnight_ms: int) -> None:
        """Add the rows of a line, or the state of hub and link."""
        ttl_ms = line.get("ttl_ms")
        overdue_ms = max(0, wait_ms - (wait_ms if ttl_ms is None else ttl_ms))
        match line["event"]:
            case "enqueued" | "requeued":
                self.add(line, CAME, at_ms, ttl_ms=ttl_ms)
            case "sent":
                self.add(line, SENT, at_ms - min(line.get("attempt_ms", 0), wait_ms))
            case "expired":
                self.add(line, EXPIRED, at_ms - overdue_ms)
            case "dropped" | "dead_lettered" | "purged" | "lost" as event:
                self.add(line, DROPPED if event == "dropped" else REMOVED, at_ms)
            case "moved" if line["reason"] == "command":
                self.add(line, REMOVED, at_ms)
            case "link":
                state = {**line, "rows": int(line["state"] == "up")}
                self.add(state, LINK, at_ms, text=str(at_ms - midnight_ms))
            case "carried" if line["edge"] == "out":
                self.add(line, END, at_ms)
            case "carried" if line["edge"] == "in":
                self.add(line, CARRIED, at_ms, text=json.dumps(line["ages"]))
            case "settings":
                names = {"routes": "route_table", "endpoints": "endpoints", "caps": "caps"}
                in_force = {name: line.get(key) for name, key in names.items()}
                self.add(line, SETTINGS, at_ms, endpoint="", text=json.dumps(in_force))

    def add(
        self, line: dict[str, Any], kind: str, at_ms: int, *, sign: int = 1, **keys: Any
    ) -> None:
        """Add to one parcel."""
        key = {
            "endpoint": line.get("endpoint", ""),
            "priority": line.get("priority", DEFAULT_PRIORITY),
            "routes": tuple(line.get("routes", ())),
            "ttl_ms": None,
            "text": None,
            **keys,
        }
        at_ms = at_ms if kind == LINK else at_ms // STEP_MS * STEP_MS
        place = (at_ms, kind, *key.values())
        self._rows[place] += sign * line.get("rows", line.get("count", 1))
        self._bytes[place] += sign * line.get("bytes", 0)

    def parcels(self) -> list[Parcel]:
        """Return them by time."""
        found = (
            Parcel(*place[:-1], rows, self._bytes[place], place[-1])
            for place, rows in self._rows.items()
            if rows > 0 or place[1] in {LINK, END}
        )
        return sorted(found, key=lambda parcel: parcel.at_ms)
