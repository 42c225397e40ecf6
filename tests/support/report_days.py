"""An export for tests of the report: hubs by hand, one a question, and simulated ones.

Every hub by hand has a whole day whose counts close. `sends` keeps a better priority busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.generated_days import write_generated
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODELS: Final = 3
"""The first kinds of generated days, on which the report can rest."""
OLD_MS: Final = 1 << 43
"""Hub time of a file that is ten days older than the other one, both began with this."""
TEN_DAYS_MS: Final = 864_000_000


def write_export(export: Path) -> None:
    """Write all hubs into an export."""
    for name, write in HUBS.items():
        journal = HandJournal(DATE, hub=name)
        write(journal)
        journal.write(export)
    old_ms, new_ms = OLD_MS + TEN_DAYS_MS, OLD_MS - 43_200_000
    _write_file(export, "replaced", "aaaaaaaa", old_ms, "08:00:00", "09:00:00")
    _write_file(export, "replaced", "bbbbbbbb", new_ms, "13:00:00", "14:00:00")
    _write_file(export, "twins", "aaaaaaaa", old_ms, "08:00:00", "09:00:00")
    _write_file(export, "twins", "bbbbbbbb", new_ms, "08:30:00", "09:30:00")
    for number in range(MODELS):
        write_generated(export, number, 4_000)


def _write_file(export: Path, hub: str, store: str, start_ms: int, first: str, last: str) -> None:
    """Write the journal of one of a hub's files, with a row that waits behind better ones."""
    journal = HandJournal(DATE, hub=hub, start_ms=start_ms)
    journal.add("enqueued", first, priority=5)
    sends(journal, f"{first[:-2]}10", last)
    journal.left("sent", last, priority=5, waited_ms=3_600_000)
    for line in journal.lines:
        line["store"] = store * 2
    journal.write(export, f"000000004712-{store}.jsonl.gz")


def sends(
    journal: HandJournal,
    first: str,
    last: str,
    *,
    every_s: int = 30,
    priority: int = 0,
    endpoint: str = "upstream",
) -> None:
    """Add rows of a priority that are sent at once, from `first` on and before `last`."""
    at_s, last_s = _seconds(first), _seconds(last)
    while at_s < last_s:
        keys = {"priority": priority, "endpoint": endpoint}
        journal.add("enqueued", _clock(at_s), **keys)
        journal.left("sent", _clock(at_s), waited_ms=0, **keys)
        at_s += every_s


def _starved(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5)
    journal.add("enqueued", "10:20:00.500", priority=5, bytes=250)
    sends(journal, "10:00:10", "11:00:00")
    journal.left("sent", "11:00:00", priority=5, count=2, bytes=350, waited_ms=3_600_000)


def _alternating(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=0, count=40)
    journal.add("enqueued", "10:00:00", priority=5, count=40)
    for turn in range(40):
        at_s = _seconds("10:00:15") + 30 * turn
        journal.left("sent", _clock(at_s), priority=0)
        journal.left("sent", _clock(at_s + 15), priority=5)


def _emptied(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5)
    sends(journal, "10:00:10", "10:10:00")
    journal.left("expired", "10:10:00", priority=5, waited_ms=600_000, behind_ms=600_000)
    sends(journal, "10:10:10", "10:40:00")
    journal.add("enqueued", "10:40:00", priority=5)
    sends(journal, "10:40:10", "10:50:00")
    journal.left("sent", "10:50:00", priority=5, waited_ms=600_000)


def _midnights(journal: HandJournal) -> None:
    journal.add("carried", "00:00:00", priority=5, edge="in", rows=4)
    sends(journal, "00:00:10", "01:00:00")
    journal.left("sent", "01:00:00", priority=5, count=4, bytes=400)
    journal.add("enqueued", "23:00:00", priority=5)
    sends(journal, "23:00:10", "24:00:00")
    journal.add("carried", "24:00:00", priority=5, edge="out", rows=1)


def _restarted(journal: HandJournal) -> None:
    journal.add("link", "09:00:00", state="up")
    journal.add("enqueued", "10:00:00", priority=5)
    sends(journal, "10:00:10", "10:30:00")
    journal.add("carried", "10:30:00", priority=5, edge="stop", rows=1)
    journal.add("carried", "11:00:00", priority=5, edge="start", rows=1)
    journal.add("link", "11:00:00", state="up")
    sends(journal, "11:00:10", "11:20:00")
    journal.left("sent", "11:20:00", priority=5, waited_ms=4_800_000, offline_ms=1_800_000)


def _clock_step(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5)
    sends(journal, "10:00:10", "10:10:00")
    for minute in range(10, 30):
        journal.add("enqueued", f"10:{minute}:00", clock_s=-7200, priority=0)
        journal.left("sent", f"10:{minute}:00", clock_s=-7200, priority=0)
    journal.left("sent", "10:30:00", clock_s=10_800, priority=5, waited_ms=1_800_000)


def _idle(journal: HandJournal) -> None:
    journal.add("link", "00:00:00", state="up")
    journal.add("enqueued", "10:00:00", priority=5)
    journal.left("sent", "10:20:00", priority=5, waited_ms=1_200_000)
    journal.add("enqueued", "12:00:00", priority=5)
    sends(journal, "12:00:10", "12:10:00")
    journal.left("sent", "12:20:00", priority=5, waited_ms=1_200_000)


def _held_back(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5)
    journal.left("retried", "10:05:00", priority=5, waited_ms=300_000, reason="throttled: 600 s")
    journal.left("sent", "10:20:00", priority=5, waited_ms=1_200_000, retry_ms=900_000)


def _cut_link(journal: HandJournal) -> None:
    journal.add("link", "00:00:00", state="up")
    journal.add("enqueued", "10:00:00", priority=5)
    journal.add("link", "10:00:30", state="down")
    journal.add("link", "10:40:00", state="up")
    sends(journal, "10:40:10", "10:45:00")
    journal.left("sent", "10:45:00", priority=5, waited_ms=2_700_000, offline_ms=2_370_000)


def _unserved(journal: HandJournal) -> None:
    journal.add("link", "09:59:00", state="unserved")
    journal.add("enqueued", "10:00:00", priority=5)
    journal.add("link", "10:20:00", state="down")
    journal.add("link", "10:20:01", state="up")
    journal.left("sent", "10:20:01", priority=5, waited_ms=1_201_000, offline_ms=1_201_000)
    journal.add("link", "11:00:00", endpoint="archive", state="unserved")


def _limits(journal: HandJournal) -> None:
    for hour, end in ((10, "01:00"), (11, "00:59.999")):
        journal.add("enqueued", f"{hour}:00:00", priority=5)
        sends(journal, f"{hour}:00:10", f"{hour}:00:50")
        journal.left("sent", f"{hour}:{end}", priority=5)


def _worse(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=2)
    sends(journal, "10:00:10", "10:10:00", priority=3)
    journal.left("sent", "10:10:00", priority=2)


def _elsewhere(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5)
    sends(journal, "10:00:10", "10:10:00", endpoint="archive")
    journal.left("sent", "10:10:00", priority=5)


def _default(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00")
    sends(journal, "10:00:10", "10:10:00", priority=9)
    journal.left("sent", "10:10:00")


def _long(journal: HandJournal) -> None:
    journal.add("enqueued", "05:30:00", priority=5)
    journal.add("enqueued", "07:10:00", priority=5, count=3, bytes=300)
    sends(journal, "05:30:10", "08:40:00")
    journal.left("sent", "08:40:00", priority=5, count=4, bytes=400)


def _moved(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=1)
    sends(journal, "10:00:10", "10:30:00")
    journal.left(
        "moved", "10:15:00", priority=1, waited_ms=900_000, behind_ms=900_000, reason="recency",
        to_endpoint="upstream", to_priority=5,
    )  # fmt: skip
    journal.left("expired", "10:30:00", priority=5, waited_ms=1_800_000, behind_ms=1_800_000)


def _open(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5, count=3)
    sends(journal, "10:00:10", "10:10:00")


def _stopped(journal: HandJournal) -> None:
    journal.add("enqueued", "10:00:00", priority=5, count=3)
    journal.add("carried", "10:00:30", priority=5, edge="stop", rows=3)


def _mixed(journal: HandJournal) -> None:
    journal.add("enqueued", "08:00:00", priority=3, count=20)
    causes = ("offline_ms", "behind_ms", "retry_ms")
    for part, route in zip(causes, ("a", "b", "c"), strict=True):
        keys = {part: 50_000, "ttl_ms": 60_000, "routes": [route, "other"]}
        journal.left("expired", "09:00:00", priority=3, waited_ms=60_000, **keys)
    journal.left("expired", "09:30:00", priority=3, waited_ms=60_000, ttl_ms=60_000, routes=["a"])
    journal.add("expired", "09:40:00", priority=3, count=4, offset=None, device=None)
    journal.left("dropped", "09:50:00", priority=3, reason="by_value: queue_bytes_max")
    journal.left("dead_lettered", "09:50:00", priority=3, attempts=2, reason="rejected: 400")
    journal.left("purged", "09:50:00", priority=3)
    journal.left("lost", "09:50:00", priority=3)
    journal.add("requeued", "09:55:00", priority=3)
    journal.add(
        "dead_purged",
        "09:55:00",
        endpoint="upstream",
        priority=3,
        count=1,
        bytes=100,
        reason="requeued",
    )
    journal.add("refused", "09:56:00", device="press-2", bytes=300_000, reason="too_large")
    for waited_ms in (5, 999, 1_234, 98_765, 1_000_000):
        journal.left("sent", "09:59:00", priority=3, waited_ms=waited_ms)
    journal.add("sent", "09:59:30", priority=3, count=4)


HUBS: Final[dict[str, Callable[[HandJournal], None]]] = {
    "starved": _starved,
    "alternating": _alternating,
    "emptied": _emptied,
    "midnights": _midnights,
    "restarted": _restarted,
    "clock-step": _clock_step,
    "idle": _idle,
    "held-back": _held_back,
    "cut-link": _cut_link,
    "unserved": _unserved,
    "limits": _limits,
    "worse": _worse,
    "elsewhere": _elsewhere,
    "default": _default,
    "long": _long,
    "moved": _moved,
    "open": _open,
    "stopped": _stopped,
    "mixed": _mixed,
}


def _seconds(at: str) -> int:
    hours, minutes, seconds = at.split(":")
    return (int(hours) * 60 + int(minutes)) * 60 + int(seconds)


def _clock(at_s: int) -> str:
    return f"{at_s // 3600:02}:{at_s // 60 % 60:02}:{at_s % 60:02}"
