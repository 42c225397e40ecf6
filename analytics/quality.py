"""The state of each hub's day: which hubs the report rests on, and why not on the others.

Invariants: sums are over sound hubs only; a hub that is not sound is named with a reason. Without
any sound hub, or with one that is not and `--strict`, the run ends before anything is stored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Final

from analytics import outputs, schemas
from analytics.errors import InputError, QualityError
from analytics.transforms.balance import unbalanced

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from analytics.hubs import Survey

SOUND: Final = ("ok", "open")
NAMED_MAX: Final = 10
_QUEUES_MAX: Final = 3
_STATES: Final = {"closed": "ok", "open": "open", "unbalanced": "unbalanced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubDay:
    """A row of the table `hubs`.

    Attributes:
        hub: Hub id.
        state: `ok`, `open`, `unbalanced`, `damaged`, `silent`, `unreadable` or `cloned`.
        reason: What is wrong, empty for a sound hub.
        lines: Lines that were read.
        quarantined: Those that could not be used.
        copies: Good ones that repeat another one.
    """

    hub: str
    state: str
    reason: str = ""
    lines: int = 0
    quarantined: int = 0
    copies: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether the report rests on it."""
        return self.state in SOUND


def surveyed(survey: Survey, expected: Collection[str]) -> dict[str, HubDay]:
    """Judge hubs by their segments; one without any line is silent.

    Args:
        survey: What is known before a line is read.
        expected: Hubs that should have lines.
    """
    days = {hub: _silent(hub) for hub in (*survey.folders, *expected)}
    return days | {
        hub: HubDay(hub=hub, state="damaged", reason=reason)
        for hub, reason in survey.damaged.items()
    }


def _silent(hub: str) -> HubDay:
    return HubDay(hub=hub, state="silent", reason="no line of this date was exported")


def counted(tally: Iterable[Row], clones: Iterable[Row]) -> dict[str, HubDay]:
    """Judge hubs by their lines.

    Args:
        tally: See `readers.tally`.
        clones: See `readers.clones`.

    Returns:
        Hubs by id; `ok` stands for all whose lines can be used.
    """
    by_hub: dict[str, list[Row]] = {}
    for row in tally:
        by_hub.setdefault(row["hub"], []).append(row)
    differing = {row["hub"]: row for row in clones}
    return {hub: _counted(hub, rows, differing.get(hub)) for hub, rows in by_hub.items()}


def faults(tally: Iterable[Row]) -> dict[str, int]:
    """Return how many lines have which fault."""
    found = Counter[str]()
    for row in tally:
        if row["fault"]:
            found[row["fault"]] += row["lines"]
    return dict(sorted(found.items()))


def _counted(hub: str, rows: Sequence[Row], clone: Row | None) -> HubDay:
    faults = {row["fault"]: row["lines"] for row in rows if row["fault"]}
    state, reason = "ok", ""
    if len(faults) == len(rows):
        named = ", ".join(f"{name} {faults[name]}" for name in sorted(faults))
        state, reason = "unreadable", f"none of its lines could be used: {named}"
    elif clone is not None:
        names = " and ".join(sorted({clone[end].rsplit("/", 1)[-1] for end in ("one", "other")}))
        reason = (
            f"{clone['lines']} lines of one key differ, as in {names}: two hubs went on from"
            " copies of one file; give one of them a new data_dir"
        )
        state = "cloned"
    return HubDay(
        hub=hub,
        state=state,
        reason=reason,
        lines=sum(row["lines"] for row in rows),
        quarantined=sum(faults.values()),
        copies=sum(row["copies"] for row in rows),
    )


def balanced(equations: DataFrame, days: Mapping[str, HubDay]) -> dict[str, HubDay]:
    """Judge hubs by their equations.

    Args:
        equations: The equation of each queue.
        days: The hubs so far.

    Returns:
        The hubs that have a queue.
    """
    states = {
        row["hub"]: row["state"] for row in equations.select("hub", "state").distinct().collect()
    }
    wrong: dict[str, list[str]] = {}
    if "unbalanced" in states.values():
        for row in unbalanced(equations, _QUEUES_MAX).collect():
            wrong.setdefault(row["hub"], []).append(_difference(row))
    return {
        hub: replace(days[hub], state=_STATES[state], reason="; ".join(wrong.get(hub, ())))
        for hub, state in states.items()
    }


def check(days: Collection[HubDay], faulty: Sequence[Row], *, is_strict: bool) -> None:
    """Refuse a date that no report can rest on.

    Args:
        days: All hubs of the date.
        faulty: Some lines that could not be used.
        is_strict: Whether each hub that has segments must be sound.

    Raises:
        InputError: Hubs are damaged.
        QualityError: The counts of a hub do not close, or its lines cannot be used.
    """
    wrong = [day for day in days if not day.is_sound and day.state != "silent"]
    if not wrong or (not is_strict and any(day.is_sound for day in days)):
        return
    lines = ["nothing was written:", *named(wrong)]
    if faulty:
        lines.append("lines that could not be used:")
        lines += [f"  {row['file']}: {row['fault']}: {row['line'][:160]}" for row in faulty]
    lines.append("export the date again, or leave the hub out with --exclude-hub")
    kind = InputError if all(day.state == "damaged" for day in wrong) else QualityError
    raise kind("\n".join(lines))


def hubs(spark: SparkSession, days: Iterable[HubDay]) -> DataFrame:
    """Return the table `hubs`."""
    rows = sorted(astuple(day) for day in days)
    return spark.createDataFrame(rows, outputs.TABLES["hubs"].schema).coalesce(1)


def named(days: Collection[HubDay]) -> list[str]:
    """Return a line for each hub that is not sound, for the first ones."""
    wrong = sorted((day for day in days if not day.is_sound), key=lambda day: day.hub)
    lines = [f"  hub {day.hub}: {day.state}: {day.reason}" for day in wrong[:NAMED_MAX]]
    return lines if len(wrong) <= NAMED_MAX else [*lines, f"  and {len(wrong) - NAMED_MAX} more"]


def _difference(row: Row) -> str:
    queue = schemas.queue_name(row["endpoint"], row["priority"])
    rows, size = row["difference_rows"], row["difference_bytes"]
    messages = f"{rows} message" + ("" if abs(rows) == 1 else "s")
    return f"queue {queue}: in - out = {messages}, {size} bytes"
