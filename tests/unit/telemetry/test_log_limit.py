"""Log lines at a bounded rate."""

from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.telemetry.log_limit import LogLimit


async def test_lines_are_bounded_per_event_and_period():
    """Of one event only so many lines appear in a period; others have their own share."""
    limit = LogLimit(ManualClock(), lines_max=2, period_s=60)
    with capture_logs() as lines:
        for _ in range(5):
            limit.warning("a.happened", n=1)
        limit.info("b.happened")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("a.happened", "warning"),
        ("a.happened", "warning"),
        ("b.happened", "info"),
    ]


async def test_what_was_left_out_is_reported():
    """The first line of the next period says how many were left out, later ones do not."""
    clock = ManualClock()
    limit = LogLimit(clock, lines_max=1, period_s=60)
    with capture_logs() as lines:
        for _ in range(5):
            limit.warning("a.happened")
        await clock.advance(60)
        limit.warning("a.happened")
        await clock.advance(60)
        limit.warning("a.happened")
    assert [line.get("suppressed_lines") for line in lines] == [None, 4, None]
