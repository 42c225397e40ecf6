"""The demo's books: what is missing, what is late, and that they stay small."""

from __future__ import annotations

import pytest

from edgehub.lab.demo.ledger import DownTimes, Ledger, quantile
from edgehub.lab.demo.scenario import TRAFFIC, Kind


@pytest.fixture
def ledger() -> Ledger:
    """Books with nothing in them."""
    return Ledger(TRAFFIC, DownTimes())


def publish(ledger: Ledger, kind: Kind, message_id: str, now_s: float = 0.0) -> None:
    """Publish and acknowledge."""
    ledger.accounts[kind].publish(message_id, now_s)
    ledger.accounts[kind].acknowledge(message_id)


def test_an_acknowledged_message_is_missing_until_it_arrives(ledger: Ledger):
    """Nothing waits and nothing expired: only the arrival accounts for it."""
    publish(ledger, Kind.ALARM, "a-1")
    assert ledger.missing(0, waiting=0, expired=0) == 1
    ledger.deliver(Kind.ALARM, "a-1", 0.5)
    assert ledger.missing(0, waiting=0, expired=0) == 0


def test_an_unacknowledged_message_is_never_missing(ledger: Ledger):
    """Before its PUBACK nothing was promised."""
    ledger.accounts[Kind.ALARM].publish("a-1", 0.0)
    assert ledger.missing(0, waiting=0, expired=0) == 0
    ledger.accounts[Kind.ALARM].abandon("a-1")
    assert ledger.acknowledged == 0


def test_a_message_may_arrive_before_its_acknowledgement_is_seen(ledger: Ledger):
    """The order of PUBACK and delivery at the two clients does not matter."""
    account = ledger.accounts[Kind.ALARM]
    account.publish("a-1", 0.0)
    ledger.deliver(Kind.ALARM, "a-1", 0.1)
    account.acknowledge("a-1")
    assert (account.acknowledged, account.delivered, account.undelivered) == (1, 1, 0)


def test_a_second_copy_is_a_duplicate(ledger: Ledger):
    """It is counted apart and delivers nothing."""
    publish(ledger, Kind.BULK, "b-1")
    ledger.deliver(Kind.BULK, "b-1", 0.1)
    ledger.deliver(Kind.BULK, "b-1", 0.2)
    assert (ledger.delivered, ledger.duplicates) == (1, 1)


def test_waiting_and_expired_rows_explain_what_did_not_arrive(ledger: Ledger):
    """Of three undelivered messages one waits and one expired; one is missing."""
    publish(ledger, Kind.BULK, "b-1")
    publish(ledger, Kind.RAW, "r-1")
    publish(ledger, Kind.RAW, "r-2")
    assert ledger.missing(7, waiting=1, expired=1) == 1
    assert ledger.missing(7, waiting=1, expired=2) == 0


def test_expiry_never_explains_a_message_that_cannot_expire(ledger: Ledger):
    """An expired counter that is too high does not hide a loss of bulk telemetry."""
    publish(ledger, Kind.BULK, "b-1")
    assert ledger.missing(7, waiting=0, expired=5) == 1


def test_latency_leaves_out_the_outage(ledger: Ledger):
    """A message from the outage counts from the moment the link is up again."""
    ledger.downs.down(10.0)
    publish(ledger, Kind.ALARM, "a-1", 12.0)
    ledger.downs.up(20.0)
    ledger.deliver(Kind.ALARM, "a-1", 20.4)
    assert ledger.waits_s(0) == [pytest.approx(0.4)]


def test_latency_counts_the_time_before_the_outage(ledger: Ledger):
    """A message caught by the outage keeps what it had waited before."""
    publish(ledger, Kind.ALARM, "a-1", 9.0)
    ledger.downs.down(10.0)
    ledger.downs.up(20.0)
    ledger.deliver(Kind.ALARM, "a-1", 20.5)
    assert ledger.waits_s(0) == [pytest.approx(1.5)]


def test_an_open_outage_counts_too():
    """Overlap with an outage that has not ended."""
    downs = DownTimes()
    downs.down(10.0)
    assert downs.overlap_s(5.0, 12.0) == pytest.approx(2.0)


def test_lapsed_messages_leave_the_books_but_stay_counted(ledger: Ledger):
    """Long expired ids cost no memory and still need an expiry to explain them."""
    publish(ledger, Kind.RAW, "r-1", 0.0)
    publish(ledger, Kind.RAW, "r-2", 50.0)
    account = ledger.accounts[Kind.RAW]
    account.lapse(published_before_s=10.0)
    assert (account.lapsed, account.undelivered) == (1, 1)
    assert ledger.missing(7, waiting=1, expired=0) == 1
    assert ledger.missing(7, waiting=1, expired=1) == 0


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0)],
)
def test_quantile_is_a_value_that_occurred(values: list[float], share: float, expected: object):
    """Nearest rank, None of nothing."""
    assert quantile(values, share) == expected


def test_the_99th_of_100_leaves_one_out():
    """Exactly one of a hundred values may lie above."""
    assert quantile([float(n) for n in range(100)], 0.99) == 98.0
