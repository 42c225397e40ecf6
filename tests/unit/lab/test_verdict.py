"""The demo's judgement."""

from __future__ import annotations

from edgehub.lab.demo.ledger import DownTimes, Ledger
from edgehub.lab.demo.scenario import TRAFFIC, Kind
from edgehub.lab.demo.snapshot import Snapshot, queue_figures
from edgehub.lab.demo.verdict import judge


def a_ledger(*, alarms: int = 100, wait_s: float = 0.3) -> Ledger:
    """Build books with delivered alarms."""
    ledger = Ledger(TRAFFIC, DownTimes())
    for number in range(alarms):
        ledger.accounts[Kind.ALARM].publish(f"a-{number}", 0.0)
        ledger.accounts[Kind.ALARM].acknowledge(f"a-{number}")
        ledger.deliver(Kind.ALARM, f"a-{number}", wait_s)
    return ledger


def a_snapshot(ledger: Ledger) -> Snapshot:
    """Build a last snapshot with empty queues."""
    return Snapshot(
        elapsed_s=60.0,
        link_up=True,
        link_wait="",
        link_use=0.0,
        queues=queue_figures({"queues": []}, ledger),
        acknowledged=ledger.acknowledged,
        delivered=ledger.delivered,
        parent_waiting=0,
        news=(),
    )


def test_everything_delivered_in_time_passes():
    """The good end."""
    ledger = a_ledger()
    verdict = judge(ledger, a_snapshot(ledger), link_use_busy=0.95)
    assert verdict.passed
    assert verdict.text().startswith("PASSED\n  100 acknowledged: 100 delivered")


def test_a_missing_message_fails():
    """Acknowledged, not delivered, not waiting, not expired."""
    ledger = a_ledger()
    ledger.accounts[Kind.BULK].publish("b-1", 0.0)
    ledger.accounts[Kind.BULK].acknowledge("b-1")
    verdict = judge(ledger, a_snapshot(ledger), link_use_busy=None)
    assert verdict.faults == ("1 acknowledged messages are missing",)


def test_an_undelivered_alarm_fails_even_while_it_waits():
    """Alarms must be there at the end."""
    ledger = a_ledger()
    ledger.accounts[Kind.ALARM].publish("late", 0.0)
    ledger.accounts[Kind.ALARM].acknowledge("late")
    queues = {"queues": [{"priority": 0, "depth": 1, "sent": 0, "expired": 0, "oldest_age_s": 1}]}
    snapshot = Snapshot(
        elapsed_s=60.0,
        link_up=True,
        link_wait="",
        link_use=0.0,
        queues=queue_figures(queues, ledger),
        acknowledged=101,
        delivered=100,
        parent_waiting=0,
        news=(),
    )
    verdict = judge(ledger, snapshot, link_use_busy=None)
    assert verdict.faults == ("1 acknowledged alarms were not delivered",)


def test_late_alarms_fail():
    """The 99th percentile is bounded by 1.5 s."""
    ledger = a_ledger(wait_s=1.6)
    verdict = judge(ledger, a_snapshot(ledger), link_use_busy=None)
    assert verdict.faults == ("alarms took 1.60 s (99th percentile), allowed 1.5 s",)


def test_no_alarm_at_all_fails():
    """A demonstration that showed nothing has not passed."""
    ledger = a_ledger(alarms=0)
    assert judge(ledger, a_snapshot(ledger), link_use_busy=None).faults == ("no alarm arrived",)
