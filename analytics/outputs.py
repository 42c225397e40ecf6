"""The tables that the report writes: their columns, in order, and the key of their rows.

docs/reference/report.md defines them. A table is checked against its schema before it is
written: readers of the results rely on it from date to date.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics import schemas
from analytics.errors import AnalyticsError
from analytics.transforms.balance import IN_FLOWS, OUT_FLOWS, UNITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INT, _LONG, _STRING, _TIME = IntegerType(), LongType(), StringType(), TimestampType()

_QUEUE: Final = {"hub": _STRING, "endpoint": _STRING, "priority": _INT}
_ROWS: Final = dict.fromkeys(UNITS, _LONG)
_PARTS: Final = dict.fromkeys(("waited_ms", *(f"{cause}_ms" for cause in schemas.CAUSES)), _LONG)


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        key: Columns in which no two rows agree, the grain; none where rows may repeat.
        schema: All columns.
    """

    key: tuple[str, ...]
    schema: StructType


def _table(key: dict[str, DataType], *columns: dict[str, DataType]) -> Table:
    fields = [StructField(name, kind) for part in (key, *columns) for name, kind in part.items()]
    return Table(tuple(key), StructType(fields))


def _longs(*names: str) -> dict[str, DataType]:
    return dict.fromkeys(names, _LONG)


TABLES: Final = {
    "balance": _table(
        {**_QUEUE},
        _longs(*(f"{flow}_{unit}" for flow in (*IN_FLOWS, *OUT_FLOWS) for unit in UNITS)),
        _longs(*(f"difference_{unit}" for unit in UNITS)),
        {"state": _STRING},
    ),
    "backlog": _table({**_QUEUE, "slot": _INT}, {**_ROWS}, _longs("rows_in", "rows_out")),
    "expiry": _table(
        {**_QUEUE, "route": _STRING, "device": _STRING, "cause": _STRING, "hour": _INT},
        {**_ROWS, "ttl_ms": _LONG, **_PARTS},
    ),
    "waiting": _table(
        {**_QUEUE}, _longs("sent", "unknown", "p50_ms", "p90_ms", "p99_ms", "max_ms"), {**_PARTS}
    ),
    "waiting_histogram": _table(
        {**_QUEUE, "bucket_ms": _LONG}, _longs("rows", "max_ms"), {**_PARTS}
    ),
    "starvation_windows": _table(
        {**_QUEUE, "kind": _STRING, "start": _TIME},
        {"end": _TIME, **_longs("length_ms", "idle_ms"), "served": ArrayType(_INT)},
        {**_ROWS, **_longs("expired", "retried")},
    ),
    "starvation": _table(
        {**_QUEUE, "kind": _STRING},
        _longs("windows", "longest_ms", "total_ms", "idle_ms"),
        {**_ROWS, "expired": _LONG},
    ),
    "losses": _table({**_QUEUE, "event": _STRING, "reason": _STRING}, {**_ROWS}),
    "unserved": _table({"hub": _STRING, "endpoint": _STRING}, _longs("times", "length_ms")),
    "links": _table(
        {"hub": _STRING, "endpoint": _STRING},
        _longs("known_ms", "running_ms", "down_ms", "downs", "longest_down_ms"),
    ),
    "hubs": _table(
        {"hub": _STRING},
        {"state": _STRING, "reason": _STRING},
        _longs("lines", "quarantined", "copies"),
    ),
    "what_if": _table(
        {"scenario": _STRING, **_QUEUE, "route": _STRING},
        {"answer": _STRING, "reason": _STRING, "error": DoubleType()},
        _longs("came_rows", "sent_rows", "expired_rows", "waiting_rows", "waited_ms"),
        _longs("was_sent_rows", "was_expired_rows", "was_waited_ms"),
        _longs("recorded_sent_rows", "recorded_expired_rows"),
    ),
    "quarantine": _table({}, dict.fromkeys(("file", "fault", "line"), _STRING)),
}


def check(name: str, table: DataFrame) -> None:
    """Check that a table has the columns of its schema, in order.

    Raises:
        AnalyticsError: It has others; a fault of the report.
    """
    found, expected = _columns(table.schema), _columns(TABLES[name].schema)
    if found != expected:
        differing = ", ".join(sorted(set(found) ^ set(expected))) or "their order"
        raise AnalyticsError(
            f"table {name} was not written: its columns are not those of its schema ({differing});"
            " this is a fault of the report, not of the journals"
        )


def _columns(schema: StructType) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in schema]
