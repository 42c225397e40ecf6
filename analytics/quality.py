"""May the results be written? Judges the counts before anything is stored.

Invariant: a breach raises, and nothing was written until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from analytics import schemas
from analytics.errors import QualityError
from analytics.transforms.balance import unbalanced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

TOLD_MAX: Final = 10


def check(balanced: DataFrame, quarantine: DataFrame) -> None:
    """Refuse a day whose counts do not close.

    Args:
        balanced: The equation of each queue.
        quarantine: The lines that could not be used; some of them go into the explanation.

    Raises:
        QualityError: Says which queues, by how much, and which lines may be the reason.
    """
    wrong = unbalanced(balanced).limit(TOLD_MAX + 1).collect()
    if not wrong:
        return
    told = ["the counts do not close, nothing was written:"]
    told += [_difference(row) for row in wrong[:TOLD_MAX]]
    if len(wrong) > TOLD_MAX:
        told.append("  and more")
    faulty = quarantine.limit(TOLD_MAX).collect()
    if faulty:
        told.append("lines that could not be used:")
        told += [f"  {row['file']}: {row['fault']}: {row['line'][:160]}" for row in faulty]
    told.append("export the date again, or leave the hub out with --exclude-hub")
    raise QualityError("\n".join(told))


def _difference(row: Row) -> str:
    queue = f"hub {row['hub']}, queue {schemas.queue_name(row['endpoint'], row['priority'])}"
    rows, size = row["difference_rows"], row["difference_bytes"]
    messages = f"{rows} message" + ("" if abs(rows) == 1 else "s")
    return f"  {queue}: in - out = {messages}, {size} bytes"
