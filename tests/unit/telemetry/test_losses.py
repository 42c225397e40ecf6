"""What was lost in the last hour: counts, the newest example, and log lines at a bounded rate."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.telemetry.losses import LINE_S, LOOK_S, Loss, RecentLosses

HOUR_S = 3600


class _Part:
    """A part that counts what it loses."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.example = ""

    def losses(self) -> list[Loss]:
        """Return the totals."""
        return [
            Loss(
                key=(name,),
                total=total,
                what=f"of {name} {{was}} lost",
                example=self.example,
                hint="look there",
                event="part.messages_lost",
                fields={"queue": name},
            )
            for name, total in self.totals.items()
        ]


def _advance(clock: ManualClock, seconds: float) -> None:
    asyncio.run(clock.advance(seconds))


def test_a_loss_is_a_warning_for_an_hour() -> None:
    """With the number of the last hour and the newest example; older ones leave the number."""
    clock, part = ManualClock(), _Part()
    losses = RecentLosses(clock, [part.losses])
    assert losses.warnings() == []
    part.totals["a"], part.example = 1, "first"
    assert losses.warnings() == [
        "1 message of a was lost in the last hour (newest at 22:13 UTC: first; look there)"
    ]
    _advance(clock, HOUR_S / 2)
    part.totals["a"], part.example = 3, "second"
    assert losses.warnings() == [
        "3 messages of a were lost in the last hour (newest at 22:43 UTC: second; look there)"
    ]
    part.example = "of another time"
    _advance(clock, HOUR_S / 2)
    assert losses.warnings() == [
        "2 messages of a were lost in the last hour (newest at 22:43 UTC: second; look there)"
    ]
    _advance(clock, HOUR_S / 2)
    assert losses.warnings() == []


def test_the_time_of_the_newest_is_right_after_the_clock_was_set() -> None:
    """It is stored as an age, so a clock that was wrong at that moment has no part in it."""
    clock, part = ManualClock(), _Part()
    losses = RecentLosses(clock, [part.losses])
    part.totals["a"] = 1
    losses.look()
    clock.step_wall(3 * HOUR_S * 1000)
    assert "(newest at 01:13 UTC; look there)" in losses.warnings()[0]


def test_a_total_that_began_again_counts_from_nothing() -> None:
    """As one of a queue that was removed and came back."""
    part = _Part()
    losses = RecentLosses(ManualClock(), [part.losses])
    part.totals["a"] = 5
    assert "5 messages of a" in losses.warnings()[0]
    part.totals["a"] = 2
    assert "7 messages of a" in losses.warnings()[0]
    part.totals.clear()
    assert losses.warnings() == []


def test_losses_are_logged_at_a_bounded_rate() -> None:
    """At most once a minute for each total, with what has been lost since the last line."""

    async def ten_minutes() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(losses.run())
            for number in range(1, int(600 / LOOK_S) + 1):
                part.totals = {"a": 2 * number, "b": 1}
                await clock.advance(LOOK_S)
            task.cancel()

    clock, part = ManualClock(), _Part()
    losses = RecentLosses(clock, [part.losses])
    with capture_logs() as logs:
        asyncio.run(ten_minutes())
    lines = [line for line in logs if line["queue"] == "a"]
    assert {line["event"] for line in logs} == {"part.messages_lost"}
    assert 600 / LINE_S - 1 <= len(lines) <= 600 / LINE_S + 1
    assert sum(line["messages"] for line in lines) == lines[-1]["total"]
    assert [line["messages"] for line in logs if line["queue"] == "b"] == [1]
