"""The self-test's judgement: what is lost, what came twice, what is out of order."""

from __future__ import annotations

from edgehub.lab.selftest.judge import EXAMPLES_MAX, Copy, Judge
from edgehub.lab.selftest.ledger import Ledger

DEVICE = "device-1"


def a_ledger(*, acknowledged: int = 0, open_: int = 0) -> Ledger:
    """Build the books of one device: so many messages with a PUBACK, so many more without."""
    ledger = Ledger(DEVICE)
    sent = ledger.devices[DEVICE]
    for _ in range(acknowledged):
        sent.acknowledge(sent.send())
    for _ in range(open_):
        sent.send()
    return ledger


def a_copy(number: int, message_id: str = "") -> Copy:
    """Build a copy; by itself each number has one message id."""
    return Copy(DEVICE, number, message_id or f"m-{number}")


def test_delivered_and_waiting_messages_together_pass():
    """Even numbers were delivered, odd ones wait: nothing is missing."""
    judge = Judge(a_ledger(acknowledged=10))
    for number in range(0, 10, 2):
        judge.deliver(a_copy(number))
    for number in range(1, 10, 2):
        judge.keep(a_copy(number))
    found = judge.findings()
    assert (found.delivered, found.waiting, found.lost) == (5, 5, 0)
    assert found.faults() == []


def test_a_missing_message_fails_and_is_named():
    """Acknowledged, neither delivered nor waiting."""
    judge = Judge(a_ledger(acknowledged=4))
    for number in (0, 1, 3):
        judge.deliver(a_copy(number))
    found = judge.findings()
    assert found.lost == 1
    assert found.lost_examples == (f"{DEVICE} 2",)
    assert found.faults() == ["1 acknowledged messages are lost"]


def test_only_some_of_many_missing_messages_are_named():
    """The count is whole, the list is bounded."""
    found = Judge(a_ledger(acknowledged=100)).findings()
    assert found.lost == 100
    assert len(found.lost_examples) == EXAMPLES_MAX


def test_what_was_never_acknowledged_may_be_missing():
    """Nothing was promised for it; it is counted."""
    judge = Judge(a_ledger(acknowledged=2, open_=3))
    for number in (0, 1, 2):
        judge.deliver(a_copy(number))
    found = judge.findings()
    assert found.faults() == []
    assert (found.acknowledged, found.unacknowledged) == (2, 3)


def test_a_second_delivery_is_counted_and_no_fault():
    """At least once is the promise; the copy has the same message id."""
    judge = Judge(a_ledger(acknowledged=2))
    for number in (0, 1, 0, 1):
        judge.deliver(a_copy(number))
    found = judge.findings()
    assert (found.redelivered, found.resent, found.delivered) == (2, 0, 2)
    assert found.faults() == []


def test_a_message_that_was_sent_twice_is_distinguished_from_one_that_was_delivered_twice():
    """The hub stored both PUBLISHes, so there are two message ids."""
    ledger = a_ledger(open_=2)
    sent = ledger.devices[DEVICE]
    assert sent.resend() == [0, 1]
    sent.acknowledge(0)
    sent.acknowledge(1)
    judge = Judge(ledger)
    for message_id in ("first", "second", "second"):
        judge.deliver(a_copy(0, message_id))
    for message_id in ("third", "fourth"):
        judge.keep(a_copy(1, message_id))
    found = judge.findings()
    assert (found.resent, found.redelivered) == (2, 1)
    assert found.faults() == []


def test_a_delivered_message_that_waits_still_is_delivered():
    """Killed between delivery and its record: no second delivery yet, and nothing that waits."""
    judge = Judge(a_ledger(acknowledged=1))
    judge.deliver(a_copy(0))
    judge.keep(a_copy(0))
    found = judge.findings()
    assert (found.delivered, found.waiting, found.redelivered) == (1, 0, 0)


def test_a_first_delivery_behind_a_later_message_is_out_of_order():
    """0, 4, 2 of one device and queue."""
    judge = Judge(a_ledger(acknowledged=5))
    for number in (0, 4, 2):
        judge.deliver(a_copy(number))
    for number in (1, 3):
        judge.keep(a_copy(number))
    found = judge.findings()
    assert found.out_of_order == 1
    assert found.faults() == ["1 messages are out of order"]


def test_a_repeated_window_is_in_order():
    """After a kill what was in flight comes again before what follows it."""
    judge = Judge(a_ledger(acknowledged=7))
    for number in (0, 2, 4, 2, 4, 6):
        judge.deliver(a_copy(number))
    assert judge.findings().out_of_order == 0


def test_the_two_queues_of_a_device_have_an_order_each():
    """Kept messages are looked at after all delivered ones."""
    judge = Judge(a_ledger(acknowledged=4))
    for number in (0, 2):
        judge.deliver(a_copy(number))
    for number in (1, 3):
        judge.keep(a_copy(number))
    assert judge.findings().out_of_order == 0


def test_a_message_that_was_not_sent_fails():
    """A number beyond the last, a body that is not ours, an unknown device."""
    judge = Judge(a_ledger(acknowledged=1))
    judge.deliver(a_copy(0))
    judge.deliver(a_copy(1))
    judge.keep(a_copy(-1))
    judge.deliver(Copy("stranger", 0, "m"))
    found = judge.findings()
    assert found.unknown == 3
    assert found.faults() == ["3 messages were found that were not sent"]


def test_a_test_without_an_acknowledgement_fails():
    """It has shown nothing."""
    (fault,) = Judge(a_ledger(open_=5)).findings().faults()
    assert "nothing was tested" in fault


def test_only_what_has_no_acknowledgement_is_sent_again():
    """In order, and it is remembered."""
    sent = a_ledger(acknowledged=2, open_=3).devices[DEVICE]
    sent.acknowledge(3)
    assert sent.resend() == [2, 4]
    assert sent.resent == {2, 4}
