"""All questions in their order, and what they share.

Owns which frames are kept. Each kept one is computed when it is made and cut off from its plan:
plans that grow from question to question cost more than the questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.backlog import backlog
from analytics.transforms.balance import balance
from analytics.transforms.expiry import expiry
from analytics.transforms.flows import flows, marks, queue_flows
from analytics.transforms.losses import losses
from analytics.transforms.outages import outages
from analytics.transforms.spells import spells
from analytics.transforms.starvation import services, starvation, starved_queues
from analytics.transforms.steps import steps
from analytics.transforms.waiting import histogram, percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.args import JobArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Frames that several questions read, kept once they were computed.

    Attributes:
        lines: Good lines without copies.
        marks: What was carried over the edges, and states of links.
        summed: Flows of lines.
        balanced: The equation of each queue.
    """

    lines: DataFrame
    marks: DataFrame
    summed: DataFrame
    balanced: DataFrame


def share(lines: DataFrame) -> Shared:
    """Prepare what most questions need."""
    kept = _keep(marks(lines))
    summed = _keep(flows(lines))
    balanced = _keep(balance(queue_flows(summed), kept))
    return Shared(lines=lines, marks=kept, summed=summed, balanced=balanced)


def tables(shared: Shared, args: JobArgs) -> dict[str, DataFrame]:
    """Ask all questions.

    Returns:
        Frames by the name of their table, each kept; docs/analytics.md describes them.
    """
    moved = _keep(queue_flows(shared.summed))
    changes = _keep(outages(shared.marks, shared.summed))
    stepped = steps(shared.lines, shared.marks, shared.summed, moved, changes)
    unserved = _keep(spells(stepped, args.starved_after_s * 1000))
    served = _keep(services(shared.lines))
    windows = _keep(starvation(unserved, served, args.idle_after_s * 1000))
    buckets = _keep(histogram(shared.lines))
    made = {
        "expiry": expiry(shared.lines),
        "waiting": percentiles(buckets),
        "starvation_windows": _placed(windows, args),
        "starvation": starved_queues(windows),
        "backlog": backlog(moved, shared.balanced),
        "losses": losses(shared.summed),
    }
    kept = {name: _keep(table) for name, table in made.items()}
    return kept | {"waiting_histogram": buckets, "balance": shared.balanced}


def _keep(frame: DataFrame) -> DataFrame:
    return frame.localCheckpoint(eager=True)


def _placed(windows: DataFrame, args: JobArgs) -> DataFrame:
    """Give windows their place on the day: begun at `time`, as long as hub time says."""
    start_ms = F.lit(int(args.midnight.timestamp() * 1000)) + F.col("start_day_ms")
    return windows.select(
        *schemas.QUEUE,
        "kind",
        F.timestamp_millis(start_ms).alias("start"),
        F.timestamp_millis(start_ms + F.col("length_ms")).alias("end"),
        *("length_ms", "idle_ms", "served", "rows", "bytes", "expired", "retried"),
    )
