"""States of hubs and the equation of each queue by plain loops over the lines of an export.

Shares nothing with the report but the definitions in docs/reference/report.md.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from tests.support.report import DATE, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

COMES = ("enqueued", "requeued", "carried_in", "moved_in")
LEAVES = (
    *("sent", "expired", "dropped", "dead_lettered", "purged", "lost"),
    *("moved_out", "carried_out", "left_behind"),
)
UNITS = ("rows", "bytes")
STATES = {"closed": "ok", "open": "open", "unbalanced": "unbalanced"}

Queue = tuple[str, str, int]


def read_hubs(export: Path) -> list[dict[str, Any]]:
    """Return the table `hubs` as it is by the lines alone: `ok` or `cloned`."""
    found = []
    for folder in sorted((export / f"date={DATE}").iterdir()):
        texts: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        lines = 0
        for path in folder.iterdir():
            for text in gzip.decompress(path.read_bytes()).decode().splitlines():
                line = json.loads(text)
                texts[line["store"], line["commit"], line["seq"]].add(text)
                lines += 1
        is_cloned = any(len(each) > 1 for each in texts.values())
        found.append(
            {
                "hub": folder.name.removeprefix("hub="),
                "state": "cloned" if is_cloned else "ok",
                "lines": lines,
                "quarantined": 0,
                "copies": lines - len(texts),
            }
        )
    return found


class Equations:
    """The equations of all hubs; marks what was left behind in the column `left` of the lines.

    Attributes:
        balance: Rows of the table `balance`, also of hubs whose counts do not add up.
        states: State of each hub's day.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._counts: dict[Queue, Counter[str]] = defaultdict(Counter)
        self._ended: set[str] = set()
        self._add_flows(rows_of(database, "SELECT * FROM lines WHERE event NOT IN ('carried')"))
        seen = rows_of(
            database,
            """SELECT hub, store, max(hub_ms) AS last_ms, coalesce(max(hub_ms) FILTER (event IN
                ('enqueued', 'requeued', 'sent', 'expired', 'dropped', 'dead_lettered', 'purged',
                'lost', 'moved', 'retried')), 0) AS row_ms FROM lines GROUP BY ALL""",
        )
        carried = rows_of(
            database, "SELECT * FROM lines WHERE event = 'carried' ORDER BY hub_ms, commit, seq"
        )
        left = self._add_carried(carried, seen)
        for line in left:
            key = [line[name] for name in ("hub", "store", "commit", "seq")]
            database.execute(
                'UPDATE lines SET "left" = true WHERE hub = ? AND store = ? AND commit = ?'
                " AND seq = ?",
                key,
            )
        self.balance = [self._row(queue) for queue in self._counts]
        self.states = self._judge()
        for row in self.balance:
            row["state"] = self.states[row["hub"]]

    def _add(self, queue: Queue, flow: str, line: dict[str, Any]) -> None:
        self._counts[queue][f"{flow}_rows"] += line["n"]
        self._counts[queue][f"{flow}_bytes"] += line["bytes"]

    def _add_flows(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            hub, event = line["hub"], line["event"]
            queue = (hub, line["endpoint"], line["priority"])
            if event == "moved":
                self._add(queue, "moved_out", line)
                self._add((hub, line["to_endpoint"], line["to_priority"]), "moved_in", line)
            elif event in (*COMES, *LEAVES):
                self._add(queue, event, line)
            elif event == "retried":
                self._counts.setdefault(queue, Counter())

    def _add_carried(
        self, carried: list[dict[str, Any]], seen: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Add what was carried over the edges; return the lines of what was left behind."""
        row_ms = {(each["hub"], each["store"]): each["row_ms"] for each in seen}
        last_ms: dict[str, int] = defaultdict(int)
        of_file = {}
        for each in seen:
            of_file[each["hub"], each["store"]] = each["last_ms"]
            last_ms[each["hub"]] = max(last_ms[each["hub"]], each["last_ms"])
        with_out = {(line["hub"], line["store"]) for line in carried if line["edge"] == "out"}
        stops = {}
        for line in carried:
            file = (line["hub"], line["store"])
            queue = (line["hub"], line["endpoint"], line["priority"])
            if line["edge"] == "in":
                self._add(queue, "carried_in", line)
            elif line["edge"] == "out":
                self._add(queue, "carried_out", line)
                self._ended.add(line["hub"])
            elif line["edge"] == "stop" and file not in with_out and line["hub_ms"] >= row_ms[file]:
                stops[*queue, line["store"]] = line
        left = []
        for (*queue, store), line in stops.items():
            if of_file[line["hub"], store] < last_ms[line["hub"]]:
                self._add((*queue,), "left_behind", line)
                left.append(line)
            else:
                self._add((*queue,), "carried_out", line)
                self._ended.add(line["hub"])
        return left

    def _row(self, queue: Queue) -> dict[str, Any]:
        counts = self._counts[queue]
        row: dict[str, Any] = dict(zip(("hub", "endpoint", "priority"), queue, strict=True))
        for unit in UNITS:
            came, left = ({flow: counts[f"{flow}_{unit}"] for flow in of} for of in (COMES, LEAVES))
            row |= {f"{flow}_{unit}": number for flow, number in (came | left).items()}
            row[f"difference_{unit}"] = sum(came.values()) - sum(left.values())
        return row

    def _judge(self) -> dict[str, str]:
        states = {}
        for hub in {row["hub"] for row in self.balance}:
            differences = [
                row[f"difference_{unit}"]
                for row in self.balance
                if row["hub"] == hub
                for unit in UNITS
            ]
            if not any(differences):
                states[hub] = "closed"
            else:
                is_wrong = hub in self._ended or min(differences) < 0
                states[hub] = "unbalanced" if is_wrong else "open"
        return states
