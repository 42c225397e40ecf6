"""All questions in their order, and what they share.

Owns which frames are kept; each is computed when it is made.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from analytics import schemas
from analytics.kept import keep
from analytics.transforms.backlog import backlog
from analytics.transforms.balance import balance, left_behind
from analytics.transforms.ends import ends
from analytics.transforms.expiry import expiry
from analytics.transforms.flows import flows, left_flows, marks, minute_flows, queue_flows
from analytics.transforms.losses import losses
from analytics.transforms.outages import links, outages, states
from analytics.transforms.spells import spells
from analytics.transforms.starvation import services, starvation, starved_queues
from analytics.transforms.steps import busy_minutes, day_ends, steps
from analytics.transforms.unserved import unserved
from analytics.transforms.waiting import histogram, percentiles

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

    from analytics.args import JobArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Frames that several questions read, kept once they were computed.

    Attributes:
        lines: Good lines without copies.
        marks: What was carried over the edges or left behind, states of links, and moves.
        by_minute: Flows of lines by minute.
        summed: Flows of lines.
        moved: Flows of queues.
        balanced: The equation of each queue.
    """

    lines: DataFrame
    marks: DataFrame
    by_minute: DataFrame
    summed: DataFrame
    moved: DataFrame
    balanced: DataFrame

    def without(self, hubs: Collection[str]) -> Shared:
        """Return the same without some hubs."""
        if not hubs:
            return self
        frames = {field.name: getattr(self, field.name) for field in fields(self)}
        others = {name: frame.where(~F.col("hub").isin(*hubs)) for name, frame in frames.items()}
        return Shared(**others)


def share(lines: DataFrame, *, has_several_stores: bool) -> Shared:
    """Prepare what most questions need.

    Args:
        lines: Good lines without copies.
        has_several_stores: Whether a hub had more than one database file.
    """
    # Few rows, in one partition: the many questions that are asked of them move none.
    kept = keep(marks(lines).repartition(1))
    by_minute = keep(minute_flows(lines))
    summed = keep(flows(by_minute).repartition(1))
    moved = keep(queue_flows(summed).coalesce(1))
    if has_several_stores:
        left = keep(left_behind(kept, summed))
        kept = kept.unionByName(left).coalesce(1)
        moved = moved.unionByName(left_flows(left)).coalesce(1)
    balanced = keep(balance(moved, kept, summed))
    return Shared(
        lines=lines,
        marks=kept,
        by_minute=by_minute,
        summed=summed,
        moved=moved,
        balanced=balanced,
    )


def tables(shared: Shared, args: JobArgs) -> dict[str, DataFrame]:
    """Compute all tables.

    Returns:
        Frames by the name of their table, each kept; docs/reference/report.md describes them.
    """
    # Two at a time: while one is being planned, the other has work for all cores.
    with ThreadPoolExecutor(2, thread_name_prefix="ask") as pool:
        asked = [pool.submit(_starvation, shared, args), pool.submit(_sums, shared)]
    return {name: table for tables in asked for name, table in tables.result().items()}


def _starvation(shared: Shared, args: JobArgs) -> dict[str, DataFrame]:
    known = keep(states(shared.marks, shared.summed))
    changes = outages(known)
    served = keep(services(shared.by_minute))
    shortest_ms = args.starved_after_s * 1000
    busy = keep(busy_minutes(served, shared.by_minute, shortest_ms))
    stepped = steps(shared.lines, shared.marks, shared.summed, shared.moved, changes, busy)
    found = keep(spells(stepped, shortest_ms))
    windows = keep(starvation(found, served, args.idle_after_s * 1000))
    return {
        "starvation_windows": keep(_placed(windows, args)),
        "starvation": keep(starved_queues(windows)),
        "links": keep(links(known, day_ends(shared.marks, shared.summed))),
    }


def _sums(shared: Shared) -> dict[str, DataFrame]:
    ended = keep(ends(shared.lines))
    buckets = histogram(ended)
    return {
        "balance": shared.balanced,
        "expiry": expiry(ended),
        "waiting_histogram": buckets,
        "waiting": keep(percentiles(buckets)),
        "backlog": keep(backlog(shared.moved, shared.balanced)),
        "losses": keep(losses(shared.summed)),
        "unserved": keep(unserved(shared.marks, shared.summed, shared.moved)),
    }


def _placed(windows: DataFrame, args: JobArgs) -> DataFrame:
    """Place windows on the day: by the `time` of their start, with their length in hub time."""
    start_ms = F.lit(int(args.midnight.timestamp() * 1000)) + F.col("start_day_ms")
    return windows.select(
        *schemas.QUEUE,
        "kind",
        F.timestamp_millis(start_ms).alias("start"),
        F.timestamp_millis(start_ms + F.col("length_ms")).alias("end"),
        *("length_ms", "idle_ms", "served", "rows", "bytes", "expired", "retried"),
    )
