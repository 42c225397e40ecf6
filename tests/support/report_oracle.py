"""Every figure once more: DuckDB, or a plain loop, over the same files as the report.

Each check compares one table whole. Shares nothing with the report but the definitions in
docs/reference/report.md.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.support.report import rows_of
from tests.support.report_loop import links_of, windows_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import duckdb

    from tests.support.report import Results
    from tests.support.report_equation import Equations

QUEUE = "hub, endpoint, priority"
CAUSE = """CASE WHEN waited_ms IS NULL THEN 'unknown'
    WHEN offline_ms = greatest(offline_ms, behind_ms, retry_ms, rate_ms) THEN 'offline'
    WHEN behind_ms = greatest(behind_ms, retry_ms, rate_ms) THEN 'behind'
    WHEN retry_ms >= rate_ms THEN 'retry' ELSE 'rate' END"""
PARTS = ("waited_ms", "offline_ms", "behind_ms", "retry_ms", "rate_ms")
FLOWS = f"""
    SELECT {QUEUE}, CASE event WHEN 'moved' THEN 'moved_out' ELSE event END AS flow,
        n, bytes, day_ms
    FROM lines WHERE event IN ('enqueued', 'requeued', 'sent', 'expired', 'dropped',
        'dead_lettered', 'purged', 'lost', 'moved')
    UNION ALL SELECT hub, to_endpoint, to_priority, 'moved_in', n, bytes, day_ms
    FROM lines WHERE event = 'moved'
    UNION ALL SELECT {QUEUE}, 'carried_in', n, bytes, 0
    FROM lines WHERE event = 'carried' AND edge = 'in'
    UNION ALL SELECT {QUEUE}, 'left_behind', n, bytes, day_ms
    FROM lines WHERE "left"
"""
COMES = "flow IN ('enqueued', 'requeued', 'carried_in', 'moved_in')"


def same(found: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]], names: Sequence[str]):
    """Compare rows in the named columns, whatever their order."""
    ours = sorted(([row[name] for name in names] for row in found), key=repr)
    theirs = sorted(([row[name] for name in names] for row in expected), key=repr)
    assert ours == theirs
    assert ours


def check_expiry(results: Results, database: duckdb.DuckDBPyConnection):
    """Check rows, bytes and the parts of their waits by queue, route, device, cause and hour."""
    sums = ", ".join(f"coalesce(sum({name}), 0)::BIGINT AS {name}" for name in ("ttl_ms", *PARTS))
    expected = rows_of(
        database,
        f"""SELECT {QUEUE}, routes[1] AS route, device, {CAUSE} AS cause, day_ms // 3600000 AS hour,
            sum(n)::BIGINT AS rows, sum(bytes)::BIGINT AS bytes, {sums}
        FROM lines WHERE event = 'expired' GROUP BY ALL""",
    )
    same(results.table("expiry"), expected, list(expected[0]))


def check_balance(results: Results, equations: Equations):
    """Check each flow of each queue in rows and bytes, differences, and the state of the day."""
    expected = [row for row in equations.balance if row["state"] != "unbalanced"]
    same(results.table("balance"), expected, list(expected[0]))


def check_backlog(
    results: Results, database: duckdb.DuckDBPyConnection, open_hubs: Collection[str]
):
    """Check rows and bytes that wait at the end of each slot of ten minutes.

    The day of `open_hubs` ends with the slot of their last event of a row.
    """
    flows = rows_of(
        database,
        f"""SELECT {QUEUE}, least(day_ms, 86399999) // 600000 AS slot,
            sum(CASE WHEN {COMES} THEN n ELSE -n END)::BIGINT AS rows,
            sum(CASE WHEN {COMES} THEN bytes ELSE -bytes END)::BIGINT AS bytes
        FROM ({FLOWS}) GROUP BY ALL""",
    )
    changes: dict[Any, dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in flows:
        key = (row["hub"], row["endpoint"], row["priority"])
        changes[key][row["slot"]] = (row["rows"], row["bytes"])
    expected = []
    last: dict[str, int] = defaultdict(int)
    for (hub, *_), slots in changes.items():
        last[hub] = max(last[hub], *slots) if hub in open_hubs else 143
    for key, slots in changes.items():
        waiting = [0, 0]
        for slot in range(last[key[0]] + 1):
            net = slots.get(slot, (0, 0))
            waiting = [waiting[0] + net[0], waiting[1] + net[1]]
            expected.append((*key, slot, *waiting))
    names = ("hub", "endpoint", "priority", "slot", "rows", "bytes")
    found = (tuple(row[name] for name in names) for row in results.table("backlog"))
    assert sorted(found) == sorted(expected)


def check_waiting(results: Results, database: duckdb.DuckDBPyConnection, where: str = "true"):
    """Check the smallest wait of enough rows, at three digits; the rest exactly.

    `where` keeps the hubs whose lines stand for one row each.
    """
    digits = "length(CAST(waited_ms AS VARCHAR))"
    bucket = f"waited_ms - waited_ms % CAST(pow(10, greatest({digits} - 3, 0)) AS BIGINT)"
    sums = ", ".join(f"coalesce(sum({name}), 0)::BIGINT AS {name}" for name in PARTS)
    expected = rows_of(
        database,
        f"""SELECT {QUEUE}, sum(n)::BIGINT AS sent,
            coalesce(sum(n) FILTER (waited_ms IS NULL), 0)::BIGINT AS unknown,
            quantile_disc({bucket}, 0.5) AS p50_ms, quantile_disc({bucket}, 0.9) AS p90_ms,
            quantile_disc({bucket}, 0.99) AS p99_ms, max(waited_ms) AS max_ms, {sums}
        FROM lines WHERE event = 'sent' AND (count IS NULL OR waited_ms IS NULL)
            AND ({where})
        GROUP BY ALL""",
    )
    found = results.table("waiting", where)
    same(found, expected, list(expected[0]))


def check_losses(results: Results, database: duckdb.DuckDBPyConnection):
    """Check drops, dead letters, demotions, refusals by the kind of their reason."""
    expected = rows_of(
        database,
        f"""SELECT {QUEUE}, event, split_part(reason, ':', 1) AS reason, sum(n)::BIGINT AS rows,
            sum(coalesce(bytes, 0))::BIGINT AS bytes
        FROM lines WHERE event IN ('dropped', 'dead_lettered', 'purged', 'lost', 'moved', 'retried',
            'refused', 'dead_purged')
        GROUP BY ALL""",
    )
    same(results.table("losses"), expected, list(expected[0]))


def check_windows(results: Results, database: duckdb.DuckDBPyConnection):
    """Check windows by a loop over the lines in their order, without pieces or minutes."""
    expected = windows_of(rows_of(database, "SELECT * FROM lines"))
    names = ("hub", "endpoint", "priority", "kind", "length_ms", "idle_ms", "served")
    names += ("rows", "bytes", "expired", "retried")
    found = results.table("starvation_windows")
    same(found, expected, names)


def check_links(results: Results, database: duckdb.DuckDBPyConnection):
    """Check how long hubs ran and links were down, by a loop over their states."""
    expected = links_of(rows_of(database, "SELECT * FROM lines"))
    same(results.table("links"), expected, list(expected[0]))
