"""Sessions and wills in MQTT 5: how long they last, who ends them, what a restart leaves."""

import mqtt5
import pytest

from edgehub.clock import ManualClock
from tests.support.mqtt5_client import BOUND, EVENTS, Client5
from tests.support.mqtt_listener import MemorySessions, running

pytestmark = pytest.mark.integration

NEVER = 0xFFFF_FFFF


async def returned(bench, *, clean: bool = False, expiry: int = 60) -> bool:
    """Connect again and leave; whether the session was there."""
    client = await Client5.open(bench.port)
    answer = await client.connect(clean_start=clean, session_expiry_interval=expiry)
    await leave(client)
    return answer.session_present


async def leave(client: Client5, **options: object) -> None:
    """Say goodbye and wait until the hub has closed."""
    client.send(mqtt5.DisconnectPacket(**options))
    assert await client.raw.closed()
    await client.close()


async def vanish(bench, client: Client5) -> None:
    """Cut the connection and wait until the hub has noticed."""
    ended = sum(bench.ended().values())
    client.raw.cut()
    while sum(bench.ended().values()) == ended:
        await (await Client5.open(bench.port)).close()
    await bench.sessions.settled()


async def test_a_session_lasts_as_long_as_asked_for():
    """It is there before its interval is over and gone after it, on disk too."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await Client5.signed_in(bench.port, session_expiry_interval=60)
        assert await client.subscribe(BOUND) == [1]
        await leave(client)
        await bench.sessions.settled()
        assert bench.sessions.table == {"dev1": {BOUND: 0x09}}
        assert bench.sessions.expiries == {"dev1": (60, True)}
        await clock.advance(59)
        assert await returned(bench)
        # Connected or not, time begins anew with each end of a connection.
        await clock.advance(59)
        assert bench.listener.statistics().stored_sessions == 1
        await clock.advance(2)
        await bench.sessions.settled()
        assert bench.sessions.table == {}
        assert not await returned(bench)


async def test_no_interval_no_session():
    """Without an interval the session ends with its connection, clean start or not."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, clean_start=False)
        await client.subscribe(BOUND)
        await leave(client)
        assert bench.sessions.table == {}
        assert not await returned(bench)


async def test_a_session_for_ever():
    """The largest interval is none: the session stays, as one of 3.1.1 does."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await Client5.signed_in(bench.port, session_expiry_interval=NEVER)
        (document,) = bench.listener.session_documents("", 10)
        assert document["expiry_s"] is None
        await leave(client)
        await clock.advance(100_000)
        assert bench.sessions.expiries == {"dev1": (None, True)}
        assert await returned(bench, expiry=NEVER)


async def test_a_session_that_has_an_end_no_more_says_so_on_disk_at_once():
    """A hub that is killed while the client is connected must not end it at its next start."""
    async with running() as bench:
        await leave(await Client5.signed_in(bench.port, session_expiry_interval=60))
        client = await Client5.signed_in(
            bench.port, clean_start=False, session_expiry_interval=NEVER
        )
        await bench.sessions.settled()
        assert bench.sessions.expiries == {"dev1": (None, False)}
        await client.close()


async def test_clean_start_ends_the_session_before():
    """A clean start begins with nothing and can be kept from there."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, session_expiry_interval=60)
        await client.subscribe(BOUND)
        await leave(client)
        assert not await returned(bench, clean=True)
        assert bench.sessions.table == {"dev1": {}}
        assert await returned(bench, expiry=0)
        await bench.sessions.settled()
        assert bench.sessions.table == {}
        assert not await returned(bench)


async def test_disconnect_changes_the_interval():
    """A client may shorten its session, or end it, as it leaves."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await Client5.signed_in(bench.port, session_expiry_interval=60)
        await leave(client, session_expiry_interval=5)
        await bench.sessions.settled()
        assert bench.sessions.expiries == {"dev1": (5, True)}
        await clock.advance(6)
        assert bench.listener.statistics().stored_sessions == 0
        client = await Client5.signed_in(bench.port, session_expiry_interval=NEVER)
        await leave(client, session_expiry_interval=0)
        await bench.sessions.settled()
        assert bench.sessions.table == {}


async def test_a_restart_of_the_hub():
    """What was left of a session before the restart is left after it."""
    clock = ManualClock()
    sessions = MemorySessions()
    sessions.table = {"over": {}, "short": {}, "long": {}, "here": {}, "ever": {}}
    sessions.expiries = {
        "over": (60, True),
        "short": (60, True),
        "long": (600, True),
        "here": (60, False),
        "ever": (None, False),
    }
    sessions.absent_s = {"over": 61.0, "short": 55.0, "long": 100.0}
    async with running(clock=clock, sessions=sessions) as bench:
        await (await Client5.signed_in(bench.port)).close()
        await sessions.settled()
        assert set(sessions.table) == {"short", "long", "here", "ever"}
        # Its client was connected when the hub stopped, so its time begins now, once for all.
        assert sessions.expiries["here"] == (60, True)
        await clock.advance(6)
        await sessions.settled()
        assert set(sessions.table) == {"long", "here", "ever"}
        await clock.advance(60)
        await sessions.settled()
        assert set(sessions.table) == {"long", "ever"}


async def test_the_hub_leaves_first():
    """Sessions of clients that the hub itself disconnects keep their whole time."""
    sessions = MemorySessions()
    async with running(sessions=sessions) as bench:
        client = await Client5.signed_in(bench.port, session_expiry_interval=60)
        await bench.listener.drain()
        await bench.listener.close()
        await client.goodbye()
        await client.close()
        assert sessions.expiries == {"dev1": (60, False)}


def a_will(**options: object) -> mqtt5.Will:
    """Build a will."""
    return mqtt5.Will(EVENTS + "k=v", payload=b"gone", **options)


async def test_a_will_with_properties():
    """A will is a message as any other: properties, expiry, content type."""
    async with running() as bench:
        will = a_will(
            user_properties=[("k", "user"), ("why", "cut")],
            message_expiry_interval=30,
            content_type="text/plain",
            retain=True,
        )
        client = await Client5.signed_in(bench.port, will=will)
        client.raw.cut()
        (message,) = await bench.router.received(1)
        assert message.properties == {
            "k": "v",
            "why": "cut",
            "iothub-MessageType": "Will",
            "mqtt-retain": "true",
        }
        assert message.system == {"contentType": "text/plain"}
        assert (message.expiry_ms, message.body) == (30_000, b"gone")


async def test_leaving_with_and_without_the_will():
    """A plain goodbye drops the will, one with any other code has it sent."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, will=a_will())
        await leave(client)
        assert bench.router.messages == []
        client = await Client5.signed_in(bench.port, will=a_will())
        code = mqtt5.DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        await leave(client, reason_code=code)
        assert [m.body for m in bench.router.messages] == [b"gone"]
        assert bench.ended() == {"disconnect": 2}


async def test_a_delayed_will():
    """It waits for its client, is void when that comes back, and is sent when it does not."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        options = {"session_expiry_interval": 100, "will": a_will(will_delay_interval=10)}
        await vanish(bench, await Client5.signed_in(bench.port, **options))
        await clock.advance(9)
        client = await Client5.signed_in(bench.port, clean_start=False, **options)
        await clock.advance(20)
        assert bench.router.messages == []
        await vanish(bench, client)
        await clock.advance(9)
        assert bench.router.messages == []
        await clock.advance(2)
        assert [m.body for m in bench.router.messages] == [b"gone"]


async def test_a_will_waits_no_longer_than_its_session():
    """The end of the session, by its interval or by a clean start, sends the will."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        will = a_will(will_delay_interval=1000)
        await vanish(
            bench, await Client5.signed_in(bench.port, session_expiry_interval=5, will=will)
        )
        await clock.advance(6)
        assert len(bench.router.messages) == 1
        await vanish(
            bench, await Client5.signed_in(bench.port, session_expiry_interval=50, will=will)
        )
        assert not await returned(bench, clean=True)
        assert len(bench.router.messages) == 2
        await vanish(bench, await Client5.signed_in(bench.port, will=will))
        assert len(bench.router.messages) == 3


async def test_take_over_and_the_will():
    """Who takes over its own session has no will sent; who begins anew has."""
    async with running() as bench:
        will = a_will(will_delay_interval=10)
        options = {"session_expiry_interval": 100, "will": will}
        first = await Client5.signed_in(bench.port, **options)
        second = await Client5.signed_in(bench.port, clean_start=False, **options)
        await first.goodbye()
        assert bench.router.messages == []
        third = await Client5.signed_in(bench.port, **options)
        await second.goodbye()
        assert len(bench.router.messages) == 1
        for each in (first, second, third):
            await each.close()


async def test_wills_that_wait_when_the_hub_leaves():
    """A client that went before the hub does is reported; one that is there is not."""
    async with running() as bench:
        options = {"session_expiry_interval": 100, "will": a_will(will_delay_interval=50)}
        await vanish(bench, await Client5.signed_in(bench.port, **options))
        there = await Client5.signed_in(bench.port, "dev2", will=None)
        await bench.listener.drain()
        assert [m.body for m in bench.router.messages] == [b"gone"]
        await there.close()


async def test_many_wills_at_once():
    """Beyond a bound of bytes wills do not wait, so that memory stays bounded."""
    clock = ManualClock()
    async with running(clock=clock, message_bytes_max=2**20) as bench:
        body = b"x" * 60_000
        for number in range(300):
            topic = f"devices/d{number}/messages/events/"
            will = mqtt5.Will(topic, payload=body, will_delay_interval=10)
            client = await Client5.signed_in(
                bench.port, f"d{number}", session_expiry_interval=100, will=will
            )
            client.raw.cut()
            await client.close()
        while sum(bench.ended().values()) < 300:
            await (await Client5.open(bench.port)).close()
        at_once = len(bench.router.messages)
        assert 300 - at_once == 2**24 // (60_000 + 256 + len("iothub-MessageTypeWill"))
        await clock.advance(11)
        assert len(bench.router.messages) == 300
