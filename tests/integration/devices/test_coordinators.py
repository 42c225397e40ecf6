"""What holds for every coordinator, in this process or in Redis, and what for Redis alone."""

import asyncio
import json
import signal

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.affinity.coordinator import (
    TAKE_OVER_S,
    DownlinkClaim,
    ElectedFrame,
    ElectionRequest,
    JoinClaim,
)
from edgehub.devices.affinity.in_process import F_CNT_MAX, InProcessCoordinator
from edgehub.devices.affinity.redis_coordinator import RedisCoordinator
from edgehub.devices.faults import CoordinatorUnreachableError
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from tests.support.redis import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One Redis for all tests that do not stop it."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
async def link(server):
    """The way to Redis."""
    link = RedisLink(RedisOptions(url=server.url))
    yield link
    await link.close()


@pytest.fixture
def redis(link, request):
    """A coordinator in Redis, with keys of its own."""
    return RedisCoordinator(link, prefix=request.node.name, block_s=0.2)


@pytest.fixture
def clock():
    """The one of the coordinator in this process."""
    return ManualClock()


@pytest.fixture(params=["in-process", "redis"])
async def coordinator(request, server, clock):
    """Each of them."""
    if request.param == "in-process":
        yield InProcessCoordinator(clock, incarnation="one")
        return
    link = RedisLink(RedisOptions(url=server.url))
    yield RedisCoordinator(link, prefix=request.node.name, block_s=0.2)
    await link.close()


@pytest.fixture
def expire(request, server, clock):
    """Let the time pass in which the winner of a frame may report it."""

    async def run(coordinator) -> None:
        if isinstance(coordinator, InProcessCoordinator):
            await clock.advance(TAKE_OVER_S)
            return
        key = f"{{{request.node.name}}}:affinity:device:d"
        frames = json.loads(server.command("HGET", key, "open").split(b"\r\n")[1])
        for frame in frames:
            frame["ms"] -= 1000 * TAKE_OVER_S
        server.command("HSET", key, "open", json.dumps(frames))

    return run


def a_ballot(hub_id: str, f_cnt: int, **members) -> ElectionRequest:
    """Ask for the device `d`."""
    return ElectionRequest(**{"device_id": "d", "hub_id": hub_id, "f_cnt": f_cnt, **members})


async def wins(coordinator, hub_id: str, f_cnt: int, **members) -> bool:
    """Ask, and say whether the hub got the frame."""
    return (await coordinator.elect(a_ballot(hub_id, f_cnt, **members))).won


async def test_the_rule_of_the_election(coordinator):
    """Higher wins, equal wins for the recorded hub, all else is a duplicate; 32 bits."""
    assert await wins(coordinator, "a", 65_535)
    assert await wins(coordinator, "a", 65_535)
    assert not await wins(coordinator, "b", 65_535)
    assert await wins(coordinator, "a", 65_536)
    assert not await wins(coordinator, "a", 0)
    assert await wins(coordinator, "b", F_CNT_MAX)
    verdict = await coordinator.elect(a_ballot("a", 7))
    assert (verdict.won, verdict.owner) == (False, "b")


async def test_the_notice_stands_in_the_stream_before_the_answer(coordinator):
    """The former owner reads number and new owner at once; nobody else is told."""
    await wins(coordinator, "a", 5)
    verdict = await coordinator.elect(a_ballot("b", 6))
    assert verdict.former == "a"
    batch = await coordinator.notices("a", "")
    (notice,) = batch.notices
    assert (notice.device_id, notice.owner, notice.epoch) == ("d", "b", verdict.epoch)
    assert batch.position == notice.position
    assert (await coordinator.notices("b", "")).notices == ()


async def test_the_owner_is_the_hub_that_was_elected_last(coordinator):
    """Asking changes nothing."""
    assert await coordinator.owner_of("d") == ""
    await wins(coordinator, "a", 5)
    assert await coordinator.owner_of("d") == "a"
    await wins(coordinator, "b", 5)
    assert await coordinator.owner_of("d") == "a"
    await wins(coordinator, "b", 6)
    assert await coordinator.owner_of("d") == "b"


async def test_a_hub_reads_on_from_its_position(coordinator):
    """Also one that was away: each notice comes once, in order, with rising epochs."""
    start = (await coordinator.notices("a", "")).position
    for f_cnt, hub_id in enumerate("abababab"):
        await wins(coordinator, hub_id, f_cnt)
    first = await coordinator.notices("a", start)
    epochs = [notice.epoch for notice in first.notices]
    assert len(epochs) == 4
    assert epochs == sorted(set(epochs))
    await wins(coordinator, "a", 8)
    await wins(coordinator, "b", 9)
    (later,) = (await coordinator.notices("a", first.position)).notices
    assert later.epoch > epochs[-1]
    again = await coordinator.notices("a", first.notices[1].position)
    assert [notice.epoch for notice in again.notices] == [*epochs[2:], later.epoch]
    assert not again.missed


async def test_a_reader_waits_for_what_comes(coordinator):
    """It has the notice as soon as the device is given away."""
    await wins(coordinator, "a", 1)
    start = (await coordinator.notices("a", "")).position
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(coordinator.notices("a", start))
        # Longer than one question of the Redis coordinator lasts.
        await asyncio.wait({reading}, timeout=0.5)
        assert not reading.done()
        await wins(coordinator, "b", 2)
        assert [notice.owner for notice in (await reading).notices] == ["b"]


async def test_a_reader_may_ask_without_waiting(coordinator):
    """It gets what is there, and the place from which to read on."""
    await wins(coordinator, "a", 1)
    start = (await coordinator.notices("a", "", wait=False)).position
    async with asyncio.timeout(5):
        nothing = await coordinator.notices("a", start, wait=False)
        assert (nothing.notices, nothing.position, nothing.missed) == ((), start, False)
        await wins(coordinator, "b", 2)
        told = await coordinator.notices("a", start, wait=False)
        assert [notice.owner for notice in told.notices] == ["b"]
        assert (await coordinator.notices("a", "gone-3", wait=False)).missed


async def test_a_position_of_another_memory_is_known_for_what_it_is(coordinator):
    """Whatever it was, notices are missing, and reading goes on in the present memory."""
    await wins(coordinator, "a", 1)
    batch = await coordinator.notices("a", "before-57")
    assert batch.missed
    await wins(coordinator, "b", 2)
    after = await coordinator.notices("a", batch.position)
    assert [notice.owner for notice in after.notices] == ["b"]
    assert not after.missed


async def test_a_frame_is_open_until_it_is_reported_as_stored(coordinator):
    """The hub that lost asks; it is told when there is nothing to take over."""
    frame = ElectedFrame("d", 0, 7)
    assert await wins(coordinator, "a", 7)
    lost = await coordinator.elect(a_ballot("b", 7))
    assert (lost.won, lost.is_open) == (False, True)
    early = await coordinator.take_over(frame, "b")
    assert (early.won, early.is_open) == (False, True), "its winner has its time"
    await coordinator.report_stored("b", [frame])
    assert (await coordinator.take_over(frame, "b")).is_open, "another hub's report counts nothing"
    assert await wins(coordinator, "a", 8)
    assert (await coordinator.elect(a_ballot("b", 7))).is_open, "also if it is an old one by now"
    await coordinator.report_stored("a", [frame, ElectedFrame("e", 0, 1)])
    over = await coordinator.take_over(frame, "b")
    assert (over.won, over.is_open, over.owner) == (False, False, "a")
    assert not (await coordinator.elect(a_ballot("b", 7))).is_open


async def test_a_frame_whose_winner_has_ended_is_taken_over_once(coordinator, expire):
    """The device follows, unless a newer frame was elected elsewhere."""
    assert await wins(coordinator, "a", 7)
    await expire(coordinator)
    taken = await coordinator.take_over(ElectedFrame("d", 0, 7), "b")
    assert (taken.won, taken.owner, taken.former) == (True, "b", "a")
    (notice,) = (await coordinator.notices("a", "")).notices
    assert (notice.owner, notice.epoch) == ("b", taken.epoch)
    other = await coordinator.take_over(ElectedFrame("d", 0, 7), "c")
    assert (other.won, other.is_open) == (False, True), "now it is open for b"
    assert await wins(coordinator, "b", 7), "as a repetition"
    await coordinator.report_stored("b", [ElectedFrame("d", 0, 7)])
    assert await wins(coordinator, "a", 8)
    assert await wins(coordinator, "c", 9)
    await expire(coordinator)
    taken = await coordinator.take_over(ElectedFrame("d", 0, 8), "b")
    assert (taken.won, taken.owner, taken.former) == (True, "c", "")


async def test_new_sessions_keep_the_owner(coordinator):
    """A frame of a newer session clears the counter, one of an older session is late."""
    assert await wins(coordinator, "a", 50, generation=1)
    assert await wins(coordinator, "a", 0, generation=2)
    assert not await wins(coordinator, "a", 51, generation=1)
    claim = JoinClaim(device_id="d", hub_id="b", key="k")
    assert await coordinator.claim_join(claim)
    await coordinator.finish_join(claim, generation=3)
    assert not await wins(coordinator, "a", 1, generation=2)
    verdict = await coordinator.elect(a_ballot("b", 0, generation=3))
    assert (verdict.won, verdict.former) == (True, "a")


async def test_a_device_may_start_again(coordinator):
    """A recorded counter above 1 is cleared, one of 1 is not: a late copy is a duplicate."""
    assert await wins(coordinator, "a", 50)
    verdict = await coordinator.elect(a_ballot("b", 0, restarted=True))
    assert (verdict.won, verdict.former) == (True, "a")
    assert await wins(coordinator, "b", 1, restarted=True)
    assert not await wins(coordinator, "a", 0, restarted=True)


async def test_a_late_copy_of_a_beginning_is_no_second_one(coordinator):
    """A slow hub hears 0 and 1 when another one is further already; it gets neither."""
    for f_cnt in (0, 1, 2, 3):
        assert await wins(coordinator, "a", f_cnt, restarted=f_cnt < 2)
    assert not await wins(coordinator, "b", 0, restarted=True)
    assert not await wins(coordinator, "b", 1, restarted=True)
    assert await wins(coordinator, "a", 4)
    assert await wins(coordinator, "a", 0, restarted=True), "its owner hears it in order"


async def test_a_join_is_claimed_once_until_it_is_given_back(coordinator):
    """A second hub gets it only where the first one could not answer."""
    one = JoinClaim(device_id="d", hub_id="a", key="k")
    two = JoinClaim(device_id="d", hub_id="b", key="k")
    assert await coordinator.claim_join(one)
    assert not await coordinator.claim_join(one)
    assert not await coordinator.claim_join(two)
    await coordinator.finish_join(one, generation=None)
    assert await coordinator.claim_join(two)


async def test_downlink_counters_are_granted_to_the_owner_and_never_twice(coordinator):
    """The owner gets the next one; a new session counts from its beginning."""
    assert await wins(coordinator, "a", 1)
    assert not await wins(coordinator, "b", 1)

    def claim(hub_id: str, known: int, generation: int = 0) -> DownlinkClaim:
        return DownlinkClaim(device_id="d", hub_id=hub_id, generation=generation, f_cnt_down=known)

    assert await coordinator.grant_downlink(claim("a", 4)) == 5
    assert await coordinator.grant_downlink(claim("a", 4)) == 6
    assert await coordinator.grant_downlink(claim("b", 0)) is None
    assert await coordinator.grant_downlink(claim("a", 0, generation=1)) is None
    assert await coordinator.grant_downlink(claim("a", F_CNT_MAX - 1)) == F_CNT_MAX
    assert await coordinator.grant_downlink(claim("a", 0)) is None
    assert await wins(coordinator, "a", 0, generation=1)
    assert await coordinator.grant_downlink(claim("a", 0, generation=1)) == 1


async def test_many_hubs_ask_at_once(coordinator):
    """One wins each frame, and everybody who lost a device is told once."""
    hubs = [f"h{number}" for number in range(8)]
    for f_cnt in range(1, 21):
        verdicts = await asyncio.gather(*(coordinator.elect(a_ballot(hub, f_cnt)) for hub in hubs))
        winners = {hub for hub, verdict in zip(hubs, verdicts, strict=True) if verdict.won}
        assert len(winners) == 1
        assert {verdict.owner for verdict in verdicts} == winners
    notices = [notice for hub in hubs for notice in (await coordinator.notices(hub, "")).notices]
    assert len({notice.epoch for notice in notices}) == len(notices)


async def test_a_stream_that_was_cut_is_known_for_it(redis, link):
    """Notices that left the stream before they were read are missing."""
    await wins(redis, "a", 1)
    start = (await redis.notices("a", "")).position
    for f_cnt, hub_id in enumerate("babab", start=2):
        await wins(redis, hub_id, f_cnt)
    stream = await link.call("KEYS", "*test_a_stream_that_was_cut*:notices:*:a")
    await link.call("XTRIM", stream[0], "MAXLEN", 1)
    batch = await redis.notices("a", start)
    assert batch.missed
    assert len(batch.notices) == 1
    assert not (await redis.notices("a", batch.notices[0].position.rsplit("-", 1)[0] + "-2")).missed
    await link.call("DEL", stream[0])
    assert (await redis.notices("a", start)).missed


async def test_what_no_hub_wrote_ends_no_reader(redis, link, request):
    """A notice that cannot be read counts as missed; a damaged record is no lost election."""
    assert await wins(redis, "g1", 1)
    position = await redis.position("g1")
    assert await wins(redis, "g2", 2)
    incarnation = position.rpartition("-")[0]
    prefix = f"{{{request.node.name}}}:affinity:"
    stream = f"{prefix}notices:{incarnation}:g1"
    await link.calls(
        [("XADD", stream, "2-1", "x", "y"), ("HINCRBY", f"{prefix}fleet", "notices:g1", 1)]
    )
    batch = await redis.notices("g1", position)
    assert [notice.owner for notice in batch.notices] == ["g2"]
    assert (batch.missed, batch.position) == (True, f"{incarnation}-2")
    await link.call("HSET", f"{prefix}device:d", "owner", b"\xff")
    with pytest.raises(CoordinatorUnreachableError, match="its data cannot be read"):
        await wins(redis, "g2", 2)
    await link.call("HSET", f"{prefix}device:d", "owner", "g2")
    for count, number in enumerate(("inf", "x", "0x10", "9" * 20), 1):
        for name in ("epoch", "generation", "f_cnt_down", "f_cnt"):
            await link.call("HSET", f"{prefix}device:d", name, number)
            assert await wins(redis, "g1", count)


async def test_records_and_claims_end_by_themselves(redis, link, request):
    """A device that is silent for a month is forgotten, a join after five minutes."""
    await wins(redis, "a", 1)
    await redis.claim_join(JoinClaim(device_id="d", hub_id="a", key="k"))
    prefix = f"{{{request.node.name}}}:affinity:"
    assert 30 * 86_400 - 60 < await link.call("TTL", f"{prefix}device:d") <= 30 * 86_400
    assert 290 < await link.call("TTL", f"{prefix}join:d:k") <= 300


async def test_redis_may_lose_its_memory(tmp_path):
    """Epochs still grow, and a reader who waited, or was away, learns that it missed all."""
    server = RedisServer(tmp_path).start()
    link = RedisLink(RedisOptions(url=server.url, timeout_s=1.0))
    coordinator = RedisCoordinator(link, prefix="p", block_s=0.2)
    try:
        before = await coordinator.elect(a_ballot("a", 100))
        start = (await coordinator.notices("a", "")).position
        server.stop(forget=True)
        with pytest.raises(CoordinatorUnreachableError):
            await coordinator.elect(a_ballot("a", 101))
        with pytest.raises(CoordinatorUnreachableError):
            await coordinator.notices("a", start)
        server.start()
        verdict = await coordinator.elect(a_ballot("b", 1))
        assert verdict.won
        assert verdict.epoch > before.epoch
        assert (await coordinator.notices("a", start)).missed
    finally:
        await link.close()
        server.stop()


async def test_redis_keeps_its_memory_over_a_restart(tmp_path):
    """Owner, counter and notices are there, and a position still counts."""
    server = RedisServer(tmp_path, persistent=True).start()
    link = RedisLink(RedisOptions(url=server.url, timeout_s=1.0))
    coordinator = RedisCoordinator(link, prefix="p", block_s=0.2)
    try:
        start = (await coordinator.notices("a", "")).position
        await wins(coordinator, "a", 1)
        await wins(coordinator, "b", 2)
        server.stop()
        server.start()
        assert not await wins(coordinator, "a", 2)
        batch = await coordinator.notices("a", start)
        assert [notice.owner for notice in batch.notices] == ["b"]
        assert not batch.missed
    finally:
        await link.close()
        server.stop()


async def test_a_busy_redis_is_no_lost_election(tmp_path):
    """It gives no answer in time; that says nothing about who owns the device."""
    server = RedisServer(tmp_path).start()
    link = RedisLink(RedisOptions(url=server.url, timeout_s=0.2, connect_timeout_s=0.3))
    coordinator = RedisCoordinator(link, prefix="busy")
    try:
        assert await wins(coordinator, "a", 1)
        server.signal(signal.SIGSTOP)
        with pytest.raises(CoordinatorUnreachableError):
            await coordinator.elect(a_ballot("a", 2))
        server.signal(signal.SIGCONT)
        # It may have carried out what it did not answer: the same frame of the same hub is allowed.
        assert await wins(coordinator, "a", 2)
    finally:
        await link.close()
        server.stop()


async def test_an_older_state_of_redis_counts_as_missing_notices(tmp_path):
    """A fail-over to a copy that lags behind: nobody waits for numbers that come a second time."""
    server = RedisServer(tmp_path, persistent=True).start()
    link = RedisLink(RedisOptions(url=server.url))
    coordinator = RedisCoordinator(link, prefix="old", block_s=0.2)
    try:
        await wins(coordinator, "a", 1)
        await asyncio.to_thread(server.remember)
        await wins(coordinator, "b", 2)
        await wins(coordinator, "a", 3)
        await wins(coordinator, "b", 4)
        read = (await coordinator.notices("a", "")).position
        assert read.endswith("-2")
        await asyncio.to_thread(server.stop, rewind=True)
        await asyncio.to_thread(server.start)
        await link.close()  # its connections went with the server
        link = RedisLink(RedisOptions(url=server.url))
        coordinator = RedisCoordinator(link, prefix="old", block_s=0.2)
        async with asyncio.timeout(5):
            batch = await coordinator.notices("a", read)
        assert batch.missed
        await wins(coordinator, "b", 5)
        async with asyncio.timeout(5):
            told = await coordinator.notices("a", batch.position)
        assert [(notice.owner, notice.device_id) for notice in told.notices] == [("b", "d")]
        assert not told.missed
    finally:
        await link.close()
        server.stop()


async def test_a_redis_that_is_emptied_under_way_counts_as_missing_notices(link, request):
    """FLUSHALL cuts no connection; a reader that waits meanwhile hears of it soon."""
    coordinator = RedisCoordinator(link, prefix=request.node.name, block_s=0.2)
    await wins(coordinator, "a", 1)
    await wins(coordinator, "b", 2)
    read = (await coordinator.notices("a", "")).position
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(coordinator.notices("a", read))
        await asyncio.sleep(0)
        for key in await link.call("KEYS", f"{{{request.node.name}}}:*"):
            await link.call("DEL", key)
        await wins(coordinator, "b", 1)
        await wins(coordinator, "a", 2)
    assert waiting.result().missed


async def test_two_hubs_of_one_name_are_reported(redis, link, request):
    """Each of them, as long as both run; a hub that was started again is none."""
    await wins(redis, "a", 1)
    assert (await redis.notices("a", "")).notices == ()
    other = RedisCoordinator(link, prefix=request.node.name, block_s=0.2)
    await other.notices("a", "")
    assert other.twin == "", "it may be the same hub, started again"
    await redis.notices("a", "")
    await other.notices("a", "")
    assert redis.twin
    assert other.twin
    await redis.notices("b", "")
    await other.notices("a", "")
    assert other.twin == "", "the first one is gone"
