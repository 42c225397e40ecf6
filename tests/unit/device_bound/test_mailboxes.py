"""Messages to devices: order, bounds, ends, and what their senders are informed of."""

from __future__ import annotations

import asyncio

import pytest

from edgehub.device_bound.mailbox import IN_FLIGHT_MAX
from edgehub.device_bound.mailboxes import RETRY_S
from edgehub.device_bound.message import (
    EndReason,
    Origin,
    QueueDepthExceededError,
    feedback_record,
    milliseconds_left,
)
from edgehub.devices.request_queue import RequestKind
from edgehub.errors import StoreError
from edgehub.message import (
    DEFAULT_PRIORITY,
    DELIVERED,
    FailureKind,
    Priority,
    RefusedByClient,
    SendResult,
)
from tests.support.mailboxes import MailboxBench

GONE = SendResult(FailureKind.DISCONNECTED, "gone")
LATE = SendResult(FailureKind.TIMEOUT, "late")
SLOW = SendResult(FailureKind.THROTTLED, "slow", 5.0)
NO = RefusedByClient(FailureKind.TRANSIENT, "no")


async def test_messages_wait_for_an_absent_device_and_leave_by_priority():
    """The best one first, by arrival within a priority; gone once acknowledged."""
    bench = MailboxBench()
    for body, priority in ((b"1", None), (b"2", 5), (b"3", 0), (b"4", 5)):
        await bench.put(body, priority=DEFAULT_PRIORITY if priority is None else Priority(priority))
    await bench.put(b"other", "e")
    assert bench.sent == []
    await bench.listen()
    assert bench.bodies == [b"3", b"2", b"4", b"1"]
    for at in range(4):
        bench.settle(DELIVERED, at)
    assert [each.body for each in bench.table.rows.values()] == [b"other"]
    assert bench.ended == {"Success": 4}


async def test_a_message_is_sent_at_once_and_acknowledged_to_its_sender_once_it_is_durable():
    """Its client need not wait for the commit; what it says before that ends the message."""
    bench = MailboxBench()
    await bench.listen()
    bench.table.held = []
    _, stored = bench.mailboxes.accept("d", b"x", {}, {}, origin=Origin.API)
    assert bench.bodies == [b"x"]
    bench.settle(DELIVERED)
    assert bench.ended == {"Success": 1}
    assert not stored.done()
    bench.table.held[0].set_result(None)
    await stored


async def test_a_closed_store_takes_nothing():
    """The sender has an error, and nothing is sent."""
    bench = MailboxBench()
    await bench.listen()
    bench.table.is_closed = True
    with pytest.raises(StoreError):
        await bench.put(b"x")
    assert bench.sent == []


async def test_so_many_are_in_flight_at_most():
    """A better message waits for no more than these; the next leaves with an acknowledgement."""
    bench = MailboxBench()
    await bench.listen()
    for number in range(IN_FLIGHT_MAX + 1):
        await bench.put(b"%d" % number)
    assert len(bench.sent) == IN_FLIGHT_MAX
    await bench.put(b"alarm", priority=Priority(0))
    bench.settle(DELIVERED, 0)
    assert bench.bodies[-1] == b"alarm"
    assert bench.mailboxes.statistics().in_flight == IN_FLIGHT_MAX


async def test_a_session_that_ends_without_an_acknowledgement():
    """What was in flight comes again in order, marked as a repetition; nothing else is."""
    bench = MailboxBench()
    await bench.listen()
    for body in (b"1", b"2"):
        await bench.put(body)
    bench.mailboxes.listening("d", False)
    for at in (0, 1):
        bench.settle(GONE, at)
    await bench.put(b"3")
    assert len(bench.sent) == 2
    await bench.listen()
    assert [(body, dup) for _, body, dup, _ in bench.sent[2:]] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]


async def test_a_late_acknowledgement_counts_as_a_delivery_of_which_there_are_ten():
    """Then the message is a dead letter, and its sender is informed."""
    bench = MailboxBench()
    await bench.listen()
    await bench.put(b"x", ack="negative")
    for _ in range(10):
        assert bench.ended == {}
        bench.settle(LATE)
    assert len(bench.sent) == 10
    assert bench.ended == {"DeliveryCountExceeded": 1}
    assert bench.reports == [("x", EndReason.DELIVERY_COUNT_EXCEEDED)]
    [dead] = bench.mailboxes.dead("d")
    assert dead.dead.startswith("DeliveryCountExceeded: delivered 10 times")
    assert bench.mailboxes.of("d") == []


async def test_a_client_that_says_no_rejects_the_message():
    """Any failure code does, also one after which modules' messages would be tried again."""
    bench = MailboxBench()
    await bench.listen()
    await bench.put(b"x", ack="full")
    bench.settle(NO)
    assert bench.ended == {"Rejected": 1}
    assert bench.reports == [("x", EndReason.REJECTED)]


async def test_a_failure_of_the_connection_pauses_the_client_alone():
    """It is tried again when the connection says, or after a second; others go on."""
    bench = MailboxBench()
    for target in ("d", "e"):
        await bench.listen(target)
        await bench.put(target.encode(), target)
    bench.settle(SLOW, 0)
    await bench.put(b"d2")
    await bench.put(b"e2", "e")
    assert bench.bodies == [b"d", b"e", b"e2"]
    await bench.clock.advance(4.9)
    assert len(bench.sent) == 3
    await bench.clock.advance(0.2)
    assert bench.bodies[3:] == [b"d", b"d2"]
    bench.settle(SendResult(FailureKind.TRANSIENT, "closing"))
    await bench.clock.advance(RETRY_S)
    assert bench.bodies[5:] == [b"d2"]


async def test_lives_end_where_the_message_is_not_in_flight():
    """By the time its sender named, the default, or 48 h; what is in flight may be acknowledged."""
    bench = MailboxBench(ttl_s=100)
    await bench.put(b"short", ttl_ms=10_000, ack="negative")
    await bench.put(b"default")
    await bench.put(b"long", ttl_ms=10**9)
    await bench.clock.advance(10)
    bench.mailboxes.expire()
    assert bench.ended == {"Expired": 1}
    assert bench.reports == [("short", EndReason.EXPIRED)]
    await bench.listen()
    assert bench.bodies == [b"default", b"long"]
    await bench.clock.advance(48 * 3600)
    bench.mailboxes.expire()
    assert len(bench.mailboxes.of("d")) == 2
    bench.settle(DELIVERED, 0)
    bench.settle(GONE, 1)
    assert bench.ended == {"Expired": 2, "Success": 1}
    assert bench.table.rows == {}


@pytest.mark.parametrize(
    ("ack", "informed"),
    [
        (None, []),
        ("none", []),
        ("positive", [EndReason.SUCCESS]),
        ("negative", [EndReason.PURGED]),
        ("full", [EndReason.SUCCESS, EndReason.PURGED]),
        ("nonsense", []),
    ],
)
async def test_the_sender_is_informed_as_it_asked(ack, informed):
    """Of a delivery, of an end without one, of both, or of neither."""
    bench = MailboxBench()
    await bench.listen()
    await bench.put(b"1", ack=ack)
    bench.settle(DELIVERED)
    bench.mailboxes.listening("d", False)
    await bench.put(b"2", ack=ack)
    assert await bench.mailboxes.purge("d", None, dead=False) == 1
    assert [reason for _, reason in bench.reports] == informed


async def test_a_full_queue_refuses_and_says_so():
    """For one client by number, for all by bytes; others have room, and nothing is evicted."""
    bench = MailboxBench(waiting_max=2, bytes_max=10_000)
    for body in (b"1", b"2"):
        await bench.put(body)
    with pytest.raises(QueueDepthExceededError, match="2 messages wait for d"):
        await bench.put(b"3", ack="full")
    await bench.put(b"4", "e")
    with pytest.raises(QueueDepthExceededError, match="bytes wait for all"):
        await bench.put(bytes(9_000).replace(b"\0", b"x"), "e")
    assert bench.reports == [("3", EndReason.QUEUE_DEPTH_EXCEEDED)]
    assert bench.ended == {"QueueDepthExceeded": 2}
    assert len(bench.table.rows) == 3


async def test_a_text_that_cannot_be_stored_is_refused_alone():
    """Nothing of it is kept, and the next message has its number."""
    bench = MailboxBench()
    with pytest.raises(TypeError, match="surrogates"):
        bench.mailboxes.accept("d", b"x", {"a": "\ud800"}, {}, origin=Origin.API)
    message = await bench.put(b"x")
    assert (message.number, bench.mailboxes.of("d")) == (1, [message])


async def test_everything_survives_a_restart():
    """Order, counts of deliveries and dead letters; what was delivered before is a repetition."""
    bench = MailboxBench(deliveries_max=2)
    await bench.listen()
    await bench.put(b"dead")
    bench.settle(NO)
    await bench.put(b"1")
    bench.mailboxes.listening("d", False)
    bench.settle(GONE)
    await bench.put(b"2", priority=Priority(3))
    again = MailboxBench(bench.table, deliveries_max=2)
    await again.mailboxes.load()
    assert [each.message_id for each in again.mailboxes.dead("d")] == ["dead"]
    await again.listen()
    assert [(body, dup) for _, body, dup, _ in again.sent] == [(b"2", False), (b"1", True)]
    again.settle(LATE)
    assert again.ended == {"DeliveryCountExceeded": 1}
    message = await again.put(b"3")
    assert message.number == 4


async def test_a_purge_leaves_what_is_in_flight():
    """All that waits, one id, or dead letters."""
    bench = MailboxBench()
    for body in (b"1", b"2", b"3"):
        await bench.put(body)
    assert await bench.mailboxes.purge("d", "2", dead=False) == 1
    await bench.listen()
    assert await bench.mailboxes.purge("d", None, dead=False) == 0
    bench.settle(NO)
    assert await bench.mailboxes.purge("d", None, dead=True) == 1
    assert bench.mailboxes.dead("d") == []
    assert [each.message_id for each in bench.table.rows.values()] == ["1"]
    assert await bench.mailboxes.purge("nobody", None, dead=False) == 0


async def test_a_message_waits_for_the_turn_of_its_device():
    """It leaves in the device's queue, between its other operations."""
    bench = MailboxBench()
    await bench.listen("d/m")
    end = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.queues.run("d", RequestKind.TWIN_PATCH, end.wait))
        await asyncio.sleep(0)
        await bench.put(b"x", "d/m")
        assert bench.queues.known("d").statistics().waiting == (RequestKind.DOWNLINK,)
        assert bench.sent == []
        end.set()
    assert bench.bodies == [b"x"]


async def test_what_has_ended_is_not_remembered():
    """A busy hour leaves neither messages nor mailboxes behind."""
    bench = MailboxBench()
    for number in range(3000):
        target = f"d{number}"
        await bench.listen(target)
        await bench.put(b"x", target)
        bench.settle(DELIVERED)
        bench.mailboxes.listening(target, False)
        bench.sent.clear()
    assert len(bench.mailboxes._expiries) < 1100  # noqa: SLF001 - memory shows nowhere else
    assert bench.mailboxes._boxes == {}  # noqa: SLF001 - likewise


async def test_the_bag_of_a_message():
    """Address, ids and expiry as IoT Hub writes them, without a sender; what the sender wrote."""
    bench = MailboxBench()
    message, _ = bench.mailboxes.accept(
        "d/m", b"x", {"a": "b"}, {"cid": "c1"}, origin=Origin.API, ttl_ms=1000
    )
    bag, leaving = message.outgoing(0, 0)
    assert bag == (
        "a=b&%24.cid=c1&%24.mid=made&%24.to=%2Fdevices%2Fd%2Fmodules%2Fm%2Fmessages%2Fdevicebound"
        "&%24.exp=1970-01-01T00%3A00%3A00.000Z"
    )
    assert leaving.expiry_ms == message.expires_ms
    assert "%24.exp" not in message.outgoing(0, None)[0]


async def test_feedback_has_the_form_of_iot_hub():
    """The original id, a word for what happened, and whom it was for."""
    bench = MailboxBench()
    message = await bench.put(b"x", "d/m")
    assert feedback_record(message, EndReason.EXPIRED, "", 1000) == {
        "originalMessageId": "x",
        "statusCode": "Expired",
        "description": "Expired",
        "enqueuedTimeUtc": "1970-01-01T00:00:01.000Z",
        "deviceId": "d",
        "moduleId": "m",
    }


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("1970-01-01T00:00:10Z", 9_000),
        ("1970-01-01T00:00:10", 9_000),
        ("1970-01-01T01:00:10.500+01:00", 9_500),
        ("1969-12-31T00:00:00Z", 0),
    ],
)
def test_the_expiry_of_a_peer(given, left):
    """A time of ISO 8601, in UTC unless it says otherwise; anything else is none."""
    assert milliseconds_left({"absolute-expiry-time": given}, 1_000) == left
