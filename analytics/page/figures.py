"""The few numbers that a page shows, of the fleet or of one hub."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from analytics import schemas
from analytics.page import headline, queries
from analytics.page.queries import NAMED_MAX, TOP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from analytics.page.queries import Record

LANES_MAX: Final = 16
KINDS: Final = ("starved", "idle", "held_back")

Scope = str | None
"""The hub that a page is about, None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bounded sums, as plain records.

    Attributes:
        links_hubs: Whether the page links those of hubs.
        totals: One record over all hubs.
        hubs: The worst ones, by the share that did not arrive, then by how long queues starved.
        waiting: Rows that wait, by priority and slot.
        percentiles: Waits of sent rows by endpoint and priority.
        causes: Expired rows by hour and cause.
        spent: Expired rows by queue with the parts of their waits, over all hubs.
        routes: Routes whose rows expired most.
        devices: Devices whose rows expired most.
        queues: Queues that were not served for longest, with kind.
        lanes: Queues that were not served for longest, and the windows of each.
        losses: Other events by reason.
        unserved: Endpoints that nothing served, by hub.
        links: Links that were down for longest, and for how long their hubs ran.
        hubs_of_queues: Hubs of which most rows expired, by queue.
        idle_hubs: Hubs with the most idle windows.
        spread: Of how many devices rows expired, and between which numbers each.
    """

    links_hubs: bool
    totals: Record
    hubs: list[Record]
    waiting: list[Record]
    percentiles: list[Record]
    causes: list[Record]
    spent: list[Record]
    routes: list[Record]
    devices: list[Record]
    queues: list[Record]
    lanes: list[tuple[Record, list[Record]]]
    losses: list[Record]
    unserved: list[Record]
    links: list[Record]
    hubs_of_queues: list[Record]
    idle_hubs: list[Record]
    spread: Record


class Sums:
    """What was asked of the tables, for as many pages as there are.

    Args:
        tables: All tables by name.
        by_hub: Whether each hub has a page of its own.
    """

    def __init__(self, tables: Mapping[str, DataFrame], *, by_hub: bool) -> None:
        def scope(name: str) -> DataFrame:
            return queries.scoped(tables[name], by_hub=by_hub)

        self._by_hub = by_hub
        self._hubs = queries.hubs(tables["balance"])
        starved = queries.whole(tables["starvation"])
        self._starved = _by("hub", starved) | {None: starved}
        self._windows = _by_queue(queries.windows(tables["starvation_windows"]))
        self._waiting = _by("scope", queries.waiting(scope("backlog")))
        self._waits: dict[Scope, list[Record]] = {None: queries.waits(tables["waiting_histogram"])}
        if by_hub:
            self._waits |= _by("hub", sorted(queries.whole(tables["waiting"]), key=_queue))
        links = queries.whole(tables["links"])
        self._links = _by("hub", links) | {None: links}
        self._losses = _by("scope", queries.losses(scope("losses")))
        self._unserved = _by("scope", queries.unserved(scope("unserved")))
        self._expired = _by("scope", queries.expired(scope("expiry")))

    @property
    def hubs(self) -> list[str]:
        """All hubs, in order."""
        return sorted(row["hub"] for row in self._hubs)

    def figures(self, scope: Scope = None) -> Figures:
        """Return the figures of a hub, or of all of them."""
        starved = self._starved.get(scope, [])
        expired = defaultdict(list, _by("kind", self._expired.get(scope, [])))
        hubs = [row for row in self._hubs if scope in (None, row["hub"])]
        devices = expired["devices"]
        return Figures(
            links_hubs=self._by_hub and scope is None,
            totals=_totals(hubs, starved),
            hubs=self._worst(hubs),
            waiting=self._waiting.get(scope, []),
            percentiles=self._waits.get(scope, []),
            causes=expired["causes"],
            spent=expired["spent"],
            routes=expired["routes"],
            devices=devices,
            queues=_largest(starved, "total_ms", by=(*schemas.QUEUE, "kind"))[:LANES_MAX],
            lanes=self._lanes(starved),
            losses=self._losses.get(scope, []),
            unserved=self._unserved.get(scope, []),
            links=_largest(_down(self._links.get(scope, [])), "down_ms", by=("hub", "endpoint"))[
                :TOP
            ],
            hubs_of_queues=expired["hubs_of_queues"] if scope is None else [],
            idle_hubs=_idle_hubs(starved) if scope is None else [],
            spread=devices[0] if devices else {"devices": 0, "most": 0, "least": 0},
        )

    def _worst(self, hubs: Iterable[Record]) -> list[Record]:
        """Return hubs with what did not arrive and how long their queues starved."""
        rows = []
        for row in hubs:
            starved = self._starved.get(row["hub"], [])
            came, lost = headline.came(row), headline.lost(row)
            rows.append(
                {
                    "hub": row["hub"],
                    "state": row["state"],
                    "came_rows": came,
                    "lost_rows": lost,
                    "lost_bytes": headline.lost(row, "bytes"),
                    # A hub to which nothing came may have lost what was not counted as coming.
                    "lost_share": lost / max(came, 1),
                    "waiting_rows": row["carried_out_rows"] + row["difference_rows"],
                    "starved_ms": _sum(starved, "total_ms", kind="starved"),
                    "idle_ms": _sum(starved, "idle_ms"),
                }
            )
        return _largest(rows, "lost_share", "starved_ms", "idle_ms", by=("hub",))[:TOP]

    def _lanes(self, starved: Iterable[Record]) -> list[tuple[Record, list[Record]]]:
        totals: dict[tuple[str, ...], Record] = {}
        for row in starved:
            key = _queue(row)
            before = totals.get(key, {"total_ms": 0})
            named = {name: row[name] for name in schemas.QUEUE}
            totals[key] = named | {"total_ms": before["total_ms"] + row["total_ms"]}
        worst = _largest(totals.values(), "total_ms", by=schemas.QUEUE)[:LANES_MAX]
        return [(lane, self._windows[_queue(lane)]) for lane in worst]


def _totals(hubs: Sequence[Record], starved: Sequence[Record]) -> Record:
    longest = (row["longest_ms"] for row in starved if row["kind"] == "starved")
    return {
        "hubs": len(hubs),
        "open_hubs": sum(row["state"] == "open" for row in hubs),
        **{name: _sum(hubs, name) for name in queries.FLOWS},
        **{f"{kind}_windows": _sum(starved, "windows", kind=kind) for kind in KINDS},
        **{f"{kind}_ms": _sum(starved, "total_ms", kind=kind) for kind in KINDS},
        "longest_starved_ms": max(longest, default=0),
    }


def _down(links: Iterable[Record]) -> list[Record]:
    """Keep the links that were down, or whose hub did not run."""
    return [row for row in links if row["down_ms"] or row["running_ms"] < row["known_ms"]]


def _idle_hubs(starved: Iterable[Record]) -> list[Record]:
    windows: dict[str, int] = defaultdict(int)
    for row in starved:
        if row["kind"] == "idle":
            windows[row["hub"]] += row["windows"]
    rows = [{"hub": hub, "windows": number} for hub, number in windows.items()]
    return _largest(rows, "windows", by=("hub",))[:NAMED_MAX]


def _largest(rows: Iterable[Record], *values: str, by: Sequence[str]) -> list[Record]:
    return sorted(
        rows, key=lambda row: (*(-row[name] for name in values), *(row[name] for name in by))
    )


def _sum(rows: Iterable[Record], name: str, **where: str) -> int:
    return sum(row[name] for row in rows if all(row[key] == value for key, value in where.items()))


def _by(name: str, rows: Iterable[Record]) -> dict[Scope, list[Record]]:
    found: dict[Scope, list[Record]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def _by_queue(rows: Iterable[Record]) -> dict[tuple[str, ...], list[Record]]:
    found: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for row in rows:
        found[_queue(row)].append(row)
    return found


def _queue(row: Record) -> tuple[str, ...]:
    return tuple(row[name] for name in schemas.QUEUE)
