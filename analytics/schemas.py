"""What lines look like: the schema they are read with, their events, and their keys.

Follows docs/reference/journal-format.md, versions 1 and 2. Keys that no question needs are not
read; unknown keys are ignored.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

VERSIONS: Final = (1, 2)

DEFAULT_PRIORITY: Final = 2_000_000_000
"""Stands for the absent priority, which is behind 9; the number that manifests use for it."""

DAY_MS: Final = 86_400_000

CORRUPT: Final = "_corrupt"

IN_EVENTS: Final = ("enqueued", "requeued")
OUT_EVENTS: Final = ("sent", "expired", "dropped", "dead_lettered", "purged", "lost", "moved")
ROW_EVENTS: Final = (*IN_EVENTS, *OUT_EVENTS)
"""Events of the equation; `retried` is about a row that stays."""

EVENTS: Final = (
    *ROW_EVENTS,
    *("retried", "carried", "refused", "dead_purged", "link", "traffic", "settings"),
)
EDGES: Final = ("in", "out", "start", "stop")
LINK_STATES: Final = ("up", "down", "unserved")
CAUSES: Final = ("offline", "behind", "retry", "rate")
"""Parts of a wait, in the order in which they win a tie."""

_TYPES: Final = {
    "v": IntegerType(),
    "hub": StringType(),
    "store": StringType(),
    "commit": LongType(),
    "seq": LongType(),
    "time": StringType(),
    "hub_ms": LongType(),
    "event": StringType(),
    "endpoint": StringType(),
    "priority": IntegerType(),
    "device": StringType(),
    "routes": ArrayType(StringType()),
    "bytes": LongType(),
    "count": LongType(),
    "ttl_ms": LongType(),
    "waited_ms": LongType(),
    "offline_ms": LongType(),
    "behind_ms": LongType(),
    "retry_ms": LongType(),
    "rate_ms": LongType(),
    "reason": StringType(),
    "to_endpoint": StringType(),
    "to_priority": IntegerType(),
    "edge": StringType(),
    "rows": LongType(),
    "state": StringType(),
    "attempt_ms": LongType(),
    "ages": ArrayType(ArrayType(LongType())),
    "route_table": StringType(),
    "endpoints": StringType(),
    "caps": StringType(),
    CORRUPT: StringType(),
}

LINE: Final = StructType([StructField(name, kind) for name, kind in _TYPES.items()])

QUEUE: Final = ("hub", "endpoint", "priority")
"""Key of a queue in every table."""


def queue_name(endpoint: str, number: int) -> str:
    """Name a queue as the hub's commands do: `upstream_Pri3`, `upstream` for the default one."""
    return endpoint if number == DEFAULT_PRIORITY else f"{endpoint}_Pri{number}"


LINE_KEY: Final = ("hub", "store", "commit", "seq")
"""Key of a line: lines that agree in it are copies of one line."""
