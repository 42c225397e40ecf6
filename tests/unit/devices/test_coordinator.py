"""The coordinator of one process, its streams, and a hub's memory of them."""

from edgehub.clock import ManualClock
from edgehub.devices.affinity.coordinator import ElectionRequest, JoinClaim, Notice, NoticeBatch
from edgehub.devices.affinity.flags import Cause, Flags, InProcessAffinityStore, Ownership
from edgehub.devices.affinity.in_process import CLAIM_S, InProcessCoordinator
from edgehub.devices.affinity.recent_frames import FRAMES_MAX, RecentFrames, Reception
from edgehub.devices.faults import CoordinatorUnreachableError
from tests.support.affinity_hubs import World, in_a_world


def a_coordinator(**options) -> InProcessCoordinator:
    """Make a coordinator."""
    return InProcessCoordinator(ManualClock(), incarnation="one", **options)


def a_ballot(hub_id: str, f_cnt: int, **members) -> ElectionRequest:
    """Ask for the device `d`."""
    return ElectionRequest(**{"device_id": "d", "hub_id": hub_id, "f_cnt": f_cnt, **members})


async def wins(coordinator: InProcessCoordinator, hub_id: str, f_cnt: int, **members) -> bool:
    """Ask, and say whether the hub got the frame."""
    return (await coordinator.elect(a_ballot(hub_id, f_cnt, **members))).won


async def test_the_rule_of_the_election():
    """Higher wins, equal wins for the recorded hub, all else is a duplicate, the owner's too."""
    coordinator = a_coordinator()
    assert await wins(coordinator, "a", 5)
    assert await wins(coordinator, "a", 5)
    assert not await wins(coordinator, "b", 5)
    assert not await wins(coordinator, "a", 4)
    assert await wins(coordinator, "b", 2**32 - 1)
    assert (await coordinator.elect(a_ballot("a", 7))).owner == "b"


def test_a_coordinator_is_unreachable_until_it_answers_again():
    """An outage that is over is shown no longer."""

    async def test(world: World):
        nothing = NoticeBatch(notices=(), position="one-0")
        answers = iter([CoordinatorUnreachableError("d", "away"), nothing])

        class Flaky(InProcessCoordinator):
            async def notices(self, hub_id, after, *, wait=True):
                answer = next(answers, None)
                if isinstance(answer, Exception):
                    raise answer
                return answer or await super().notices(hub_id, after, wait=wait)

        world.coordinator = Flaky(world.clock, incarnation="one")
        hub = await world.hub("h1")
        await world.clock.sleep(0.5)
        assert hub.reader.unreachable_s() == 0.5
        await world.clock.sleep(1)
        assert hub.reader.unreachable_s() == 0

    in_a_world(test)


async def test_the_notice_stands_in_the_stream_before_the_answer():
    """The former owner can read it at once, with the election's number and the new owner."""
    coordinator = a_coordinator()
    await wins(coordinator, "a", 5)
    verdict = await coordinator.elect(a_ballot("b", 6))
    (notice,) = (await coordinator.notices("a", "")).notices
    assert (notice.device_id, notice.owner, notice.epoch) == ("d", "b", verdict.epoch)
    assert coordinator.position("a") == notice.position


async def test_epochs_grow_over_a_forgotten_record():
    """An election after the record was lost is newer than all before."""
    coordinator = a_coordinator()
    before = await coordinator.elect(a_ballot("a", 5))
    coordinator.forget("d")
    assert (await coordinator.elect(a_ballot("b", 1))).epoch > before.epoch


async def test_a_counter_of_one_is_not_cleared_again():
    """A device that started again sends 0, then 1; a late copy of 0 is a duplicate."""
    coordinator = a_coordinator()
    assert await wins(coordinator, "a", 50)
    assert await wins(coordinator, "a", 0, restarted=True)
    assert await wins(coordinator, "a", 1, restarted=True)
    assert not await wins(coordinator, "b", 0, restarted=True)


async def test_an_older_session_is_late_and_a_newer_one_begins_again():
    """Whether the coordinator hears of the join first, or of a frame after it."""
    coordinator = a_coordinator()
    assert await wins(coordinator, "a", 50, generation=1)
    assert await wins(coordinator, "a", 0, generation=2)
    assert not await wins(coordinator, "a", 51, generation=1)
    claim = JoinClaim(device_id="d", hub_id="b", key="k")
    assert await coordinator.claim_join(claim)
    await coordinator.finish_join(claim, generation=3)
    assert not await wins(coordinator, "a", 1, generation=2)
    assert await wins(coordinator, "a", 0, generation=3)


async def test_a_join_is_claimed_once_until_it_is_given_back():
    """A second hub gets it only where the first one could not answer."""
    coordinator = a_coordinator()
    one = JoinClaim(device_id="d", hub_id="a", key="k")
    two = JoinClaim(device_id="d", hub_id="b", key="k")
    assert await coordinator.claim_join(one)
    assert not await coordinator.claim_join(two)
    await coordinator.finish_join(one, generation=None)
    assert await coordinator.claim_join(two)


async def test_a_join_may_be_claimed_again_once_its_claim_is_over():
    """A hub that took it and answered nothing keeps it from the others for so long."""
    clock = ManualClock()
    coordinator = InProcessCoordinator(clock, incarnation="one")
    claim = JoinClaim(device_id="d", hub_id="a", key="k")
    assert await coordinator.claim_join(claim)
    await clock.advance(CLAIM_S - 1)
    assert not await coordinator.claim_join(claim)
    await clock.advance(1)
    assert await coordinator.claim_join(claim)


async def test_records_are_bounded():
    """The device that was silent longest is forgotten."""
    coordinator = a_coordinator(records_max=2)
    for device_id in ("d1", "d2", "d1", "d3"):
        await coordinator.elect(a_ballot("a", 1, device_id=device_id))
    assert [bool(coordinator.known(name)) for name in ("d1", "d2", "d3")] == [True, False, True]


def test_a_hub_that_missed_notices_owns_nothing_any_more():
    """Its stream was too short; every device is judged anew by its next frame."""

    async def test(world: World):
        hub = await world.hub("h1")
        for device_id in ("d", "e", "f"):
            world.put(device_id)
            await hub.uplink(1, device_id)
        hub.reader, reader = None, world.background.pop()
        reader.cancel()
        for device_id in ("d", "e"):
            await world.coordinator.elect(
                ElectionRequest(device_id=device_id, hub_id="h2", f_cnt=2)
            )
        await hub.open()
        await world.clock.sleep(5)
        assert [hub.flags.of(name) for name in "def"] == [
            Ownership.UNKNOWN,
            Ownership.LOSER,
            Ownership.UNKNOWN,
        ]
        assert (await hub.uplink(3, "f")).result == "processed"
        assert hub.flags.of("f") is Ownership.OWNER

    in_a_world(test, notices_max=1)


def test_a_position_of_another_memory_is_known_for_what_it_is():
    """A coordinator that lost its memory has a new stream, and counts elections anew."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        hub.flags.set("d", Ownership.OWNER, 900, cause=Cause.FIRST)
        hub.flags.advance("before-57")
        world.background.pop().cancel()
        await hub.open()
        await world.clock.sleep(1)
        assert hub.flags.of("d") is Ownership.UNKNOWN
        assert (await hub.uplink(2)).result == "processed"
        assert hub.flags.of("d") is Ownership.OWNER

    in_a_world(test)


async def test_flags_and_position_survive_a_restart():
    """What was told before the restart is known after it."""
    store = InProcessAffinityStore()
    flags = await Flags.open(store)
    flags.set("d", Ownership.OWNER, 3, cause=Cause.FIRST)
    assert flags.apply(Notice(position="one-1", device_id="d", epoch=4, owner="h2"))
    flags.advance("one-1")
    again = await Flags.open(store)
    assert (again.of("d"), again.position) == (Ownership.LOSER, "one-1")
    assert not again.apply(Notice(position="one-0", device_id="d", epoch=2, owner="h3"))


async def test_an_answer_that_a_notice_overtook_makes_no_owner():
    """The device was given away again before the answer to its election came."""
    flags = await Flags.open(InProcessAffinityStore())
    assert flags.apply(Notice(position="one-1", device_id="d", epoch=6, owner="h2"))
    flags.set("d", Ownership.OWNER, 5, cause=Cause.FIRST)
    assert flags.of("d") is Ownership.LOSER
    flags.set("d", Ownership.OWNER, 7, cause=Cause.FIRST)
    assert flags.of("d") is Ownership.OWNER


async def test_flags_are_bounded(monkeypatch):
    """The device whose flag changed longest ago is unknown again, also after a restart."""
    monkeypatch.setattr("edgehub.devices.affinity.flags.FLAGS_MAX", 2)
    store = InProcessAffinityStore()
    flags = await Flags.open(store)
    for epoch, name in enumerate(("d1", "d2", "d1", "d3"), start=1):
        flags.set(name, Ownership.OWNER, epoch, cause=Cause.FIRST)
    for known in (flags, await Flags.open(store)):
        assert [known.of(name) for name in ("d1", "d2", "d3")] == [
            Ownership.OWNER,
            Ownership.UNKNOWN,
            Ownership.OWNER,
        ]


async def test_copies_of_a_device_are_bounded():
    """Of many frames within a minute the oldest are forgotten first."""
    copies = RecentFrames(ManualClock())
    for key in range(FRAMES_MAX + 1):
        assert copies.classify(key, "s1") is Reception.FIRST
    assert copies.classify(FRAMES_MAX, "s2") is Reception.OTHER_STATION
    assert copies.classify(0, "s2") is Reception.FIRST


class AwayCoordinator(InProcessCoordinator):
    """Gives no notices for a while."""

    def __init__(self, clock, **options) -> None:
        super().__init__(clock, **options)
        self.refusals = 3
        self.asked_s: list[float] = []

    async def notices(self, hub_id: str, after: str, *, wait: bool = True) -> NoticeBatch:
        """See `Coordinator`."""
        self.asked_s.append(self._clock.monotonic())
        if self.refusals:
            self.refusals -= 1
            raise CoordinatorUnreachableError("-", "away")
        return await super().notices(hub_id, after, wait=wait)


def test_a_hub_that_starts_reads_its_notices_before_it_goes_on():
    """All of it, however much it is, and it waits for nothing that may come."""

    async def test(world: World):
        world.put("e")
        one = await world.hub("h1")
        for device_id in ("d", "e"):
            await one.uplink(1, device_id)
        world.background.pop().cancel()  # its reader
        await world.clock.sleep(1)
        for device_id in ("d", "e"):
            await world.coordinator.elect(a_ballot("h2", 2, device_id=device_id))
        assert one.flags.of("d") is Ownership.OWNER
        begun = world.clock.monotonic()
        await one.reader.catch_up()
        assert world.clock.monotonic() == begun
        assert {one.flags.of(name) for name in "de"} == {Ownership.LOSER}
        await one.reader.catch_up()
        for name in "de":
            await one.devices.known(name).connection.settled()
            assert not one.link(name).is_open

    in_a_world(test)


def test_a_reader_asks_again_with_growing_pauses():
    """Notices that came meanwhile are read then."""

    async def test(world: World):
        world.coordinator = AwayCoordinator(world.clock, incarnation="one")
        hub = await world.hub("h1")
        await hub.uplink(1)
        await world.coordinator.elect(a_ballot("h2", 2))
        await world.clock.sleep(60)
        started = world.coordinator.asked_s[0]
        assert [at - started for at in world.coordinator.asked_s[:4]] == [0, 1, 3, 7]
        assert hub.flags.of("d") is Ownership.LOSER
        assert not hub.link("d").is_open

    in_a_world(test)
