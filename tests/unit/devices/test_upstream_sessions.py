"""Upstream sessions of devices: over which one rows may leave, at every possible moment."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from edgehub.devices import upstream_sessions
from edgehub.devices.affinity.coordinator import ElectionRequest
from edgehub.devices.affinity.flags import Cause, Ownership
from edgehub.devices.faults import DeviceConnectionError
from edgehub.devices.upstream_sessions import SendState, UpstreamSessions
from tests.support.affinity_hubs import Hub, TimedLink, World, in_a_world

STEP_S = 0.025

OWN, HUB = False, True
"""Whether a row left over the session of the hub."""


class Traffic:
    """Hands over rows of a device, as a queue and its pump do."""

    def __init__(self, world: World, hub: Hub, **options) -> None:
        self.world = world
        self.hub = hub
        self.sessions = UpstreamSessions(
            hub.hub_id,
            devices=hub.devices,
            flags=hub.flags,
            clock=world.clock,
            tasks=world.tasks,
            **{"on_behalf": False, **options},
        )
        self.staged = 0
        self.told = 0
        self.is_over = False
        self.sent: list[bool | None] = []
        self.sessions.add_listener(self.changed)
        self.sessions.link_changed(True)

    @property
    def link(self) -> TimedLink:
        """The device's session."""
        return self.hub.link("d")

    def put(self, rows: int = 1) -> None:
        """Have rows wait for the device."""
        self.staged += rows
        self.changed("d")

    def changed(self, device_id: str) -> None:
        """Send what waits, if it may leave."""
        if not self.staged or device_id != "d":
            return
        state = self.sessions.send_state("d")
        if state is SendState.BLOCKED:
            self.sessions.count_staged("d", -self.told)
            self.told = 0
            return
        self.sessions.count_staged("d", self.staged - self.told)
        self.told = self.staged
        if state is SendState.OPEN:
            rows, self.staged, self.told = self.staged, 0, 0
            over_hub = self.sessions.over_hub("d")
            assert over_hub or self.link.is_open
            self.sent += [over_hub] * rows
            self.sessions.count_in_flight("d", rows)
            self.sessions.count_staged("d", -rows)
            self.world.clock.call_later(0.05, lambda: self.settle(rows, over_hub))

    def settle(self, rows: int, over_hub: bool | None) -> None:
        """Have the peer confirm them."""
        if not self.is_over:
            assert over_hub or self.link.is_open, "a close cut rows under way"
        self.sessions.count_in_flight("d", -rows)


def in_traffic(test, **options) -> None:
    """Run a test with a hub, its sessions, and the device `d`."""

    async def run(world: World) -> None:
        hub = await world.hub("h1")
        traffic = Traffic(world, hub, **options)
        try:
            await test(world, hub, traffic)
        finally:
            await traffic.sessions.end()
            await hub.devices.end()

    in_a_world(run)


def owns(hub: Hub) -> None:
    """Make the hub the owner of the device."""
    hub.flags.set("d", Ownership.OWNER, 5, cause=Cause.FIRST)


def loses(hub: Hub) -> None:
    """Have another hub take it, as the reader of notices does."""
    hub.flags.set("d", Ownership.LOSER, 9, cause=Cause.NOTIFIED, other="h2")
    hub.devices.release("d")


def test_an_owners_session_opens_with_the_first_row_and_stays():
    """It is opened once, however many rows follow."""

    async def test(world, hub, traffic):
        owns(hub)
        assert traffic.sessions.send_state("d") is SendState.OPENING
        traffic.put()
        await world.clock.sleep(1)
        traffic.put(3)
        await world.clock.sleep(1)
        assert traffic.sent == [OWN] * 4
        assert traffic.link.log == ["open"]
        assert traffic.link.is_open

    in_traffic(test)


def test_a_device_without_an_election_keeps_no_session():
    """It is opened for its rows, and closed behind them."""

    async def test(world, _hub, traffic):
        traffic.put(2)
        await world.clock.sleep(1)
        assert traffic.sent == [OWN] * 2
        assert traffic.link.log == ["open", "close"]

    in_traffic(test)


def test_a_request_opens_the_session_of_its_device_and_keeps_it_for_as_long():
    """As rows do; a device that was never elected has it no longer."""

    async def test(world, _hub, traffic):
        assert traffic.sessions.may_open("d")
        async with traffic.sessions.use("d"):
            assert traffic.link.is_open
            assert traffic.sessions.may_open("d")
            await world.clock.sleep(1)
        await world.clock.sleep(1)
        assert traffic.link.log == ["open", "close"]
        assert traffic.sessions.statistics().open == 0

    in_traffic(test)


@pytest.mark.parametrize("on_behalf", [False, True])
@pytest.mark.parametrize("change", ["lost", "link down", "ended"])
def test_a_request_does_not_wait_for_a_session_that_cannot_be_opened(change, on_behalf):
    """It fails at once, also if that turns out while it waits."""

    async def test(world, hub, traffic):
        owns(hub)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(fails(traffic))
            await asyncio.sleep(0)
            if change == "lost":
                loses(hub)
            elif change == "link down":
                traffic.sessions.link_changed(False)
            else:
                traffic.sessions.stop()
            await world.clock.sleep(1)
            assert waiting.done()
            await fails(traffic)
        assert not traffic.sessions.may_open("d") or change == "ended"

    in_traffic(test, on_behalf=on_behalf)


async def fails(traffic: Traffic) -> None:
    """Use the session of the device, which is not possible."""
    with pytest.raises(DeviceConnectionError, match="cannot be opened now"):
        async with traffic.sessions.use("d"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("on_behalf", [False, True])
def test_rows_of_a_lost_device_never_take_its_session(on_behalf):
    """They go over the hub's if the peer allows that, else they wait for ownership."""

    async def test(world, hub, traffic):
        loses(hub)
        traffic.put()
        await world.clock.sleep(1)
        assert traffic.sent == [HUB] * on_behalf
        owns(hub)
        hub.flags.set("d", Ownership.OWNER, 11, cause=Cause.REGAINED)
        traffic.put()
        await world.clock.sleep(1)
        assert traffic.sent[-1] is OWN
        assert len(traffic.sent) == 2

    in_traffic(test, on_behalf=on_behalf)


def test_a_take_over_pauses_the_session_and_is_not_answered_by_another():
    """It tries again after a minute, then two."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(1)
        for pause_s in (60, 120):
            traffic.link.is_open = False
            traffic.sessions.session_ended("d", taken_over=True, certain=True)
            traffic.put()
            sent = len(traffic.sent)
            await world.clock.sleep(pause_s - 1)
            assert len(traffic.sent) == sent
            assert traffic.sessions.statistics().paused == 1
            await world.clock.sleep(2)
            assert len(traffic.sent) == sent + 1
        assert traffic.sessions.statistics().take_overs == 2
        causes = [change.cause for change in hub.store.changes]
        assert causes.count(Cause.TAKEN_OVER) == 2

    in_traffic(test)


@pytest.mark.parametrize("certain", [True, False])
def test_an_election_that_changes_nothing_shortens_the_pause(certain):
    """Somebody may only have read the device; the second time in a row it is two seconds."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(1)
        for pause_s in (1, 2, 4):
            traffic.link.is_open = False
            traffic.sessions.session_ended("d", taken_over=True, certain=certain)
            traffic.put()
            owns(hub)
            sent = len(traffic.sent)
            await world.clock.sleep(pause_s - 0.1)
            assert len(traffic.sent) == sent
            await world.clock.sleep(0.5)
            assert traffic.sent[sent:] == [OWN]
        assert traffic.sessions.statistics().take_overs == 3

    in_traffic(test)


def test_a_later_election_ends_the_rest_of_a_short_pause_at_once():
    """A frame that comes long after a take-over waits for nothing."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(1)
        traffic.link.is_open = False
        traffic.sessions.session_ended("d", taken_over=True, certain=True)
        await world.clock.sleep(30)
        traffic.put()
        assert len(traffic.sent) == 1
        owns(hub)
        await world.clock.sleep(0.2)
        assert traffic.sent == [OWN] * 2

    in_traffic(test)


def test_a_device_that_came_back_before_its_notice_waits_for_nothing():
    """Another hub had it and took its session; an election gave it back."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(1)
        for epoch in range(20, 26):
            traffic.link.is_open = False
            traffic.sessions.session_ended("d", taken_over=True, certain=True)
            traffic.put()
            hub.flags.set("d", Ownership.OWNER, epoch, cause=Cause.HEARD_FIRST, other="h2")
            await world.clock.sleep(0.3)
            assert traffic.staged == 0

    in_traffic(test)


def test_somebody_who_takes_the_session_each_time_is_not_fought_for_it_with_each_frame():
    """Ten frames a second, and a stranger that signs in again at once: once a minute in the end."""

    async def test(world, hub, traffic):
        traffic.is_over = True  # the stranger may well cut rows under way
        for _ in range(6000):
            owns(hub)
            traffic.put()
            await world.clock.sleep(0.1)
            if traffic.link.is_open:
                traffic.link.is_open = False
                traffic.sessions.session_ended("d", taken_over=True, certain=True)
        assert 10 < traffic.link.log.count("open") < 20
        # It goes away: the session stays, and all is as before.
        traffic.is_over = False
        await world.clock.sleep(60)
        assert traffic.link.is_open
        assert traffic.staged == 0
        await world.clock.sleep(60)
        traffic.put()
        await world.clock.sleep(1)
        traffic.link.is_open = False
        traffic.sessions.session_ended("d", taken_over=True, certain=True)
        owns(hub)
        traffic.put()
        await world.clock.sleep(1.2)
        assert traffic.staged == 0

    in_traffic(test)


def test_the_session_of_a_device_that_another_hub_owns_is_not_paused():
    """Nothing of it waits here; once it is regained its session opens at once."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(1)
        for in_time in (True, False):
            traffic.link.is_open = False
            if in_time:
                traffic.sessions.session_ended("d", taken_over=True, certain=True)
                loses(hub)
            else:
                loses(hub)
                traffic.sessions.session_ended("d", taken_over=True, certain=True)
            assert traffic.sessions.statistics().paused == 0
            await world.clock.sleep(1)
            hub.flags.set("d", Ownership.OWNER, 10, cause=Cause.REGAINED)
            traffic.put()
            await world.clock.sleep(0.3)
            assert traffic.link.is_open

    in_traffic(test)


@pytest.mark.parametrize("link_goes", [False, True])
def test_a_close_without_a_word_is_judged_a_moment_later(link_goes):
    """It was a take-over, unless the hub's own session ended too."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(1)
        traffic.link.is_open = False
        traffic.sessions.session_ended("d", taken_over=True, certain=False)
        await world.clock.sleep(0.5)
        if link_goes:
            traffic.sessions.link_changed(False)
        await world.clock.sleep(1)
        traffic.sessions.link_changed(True)
        traffic.put()
        await world.clock.sleep(1)
        counted = traffic.sessions.statistics()
        assert (counted.take_overs, counted.losses) == ((0, 1) if link_goes else (1, 0))
        assert len(traffic.sent) == (2 if link_goes else 1)

    in_traffic(test)


def test_no_device_sends_while_the_link_is_down():
    """Rows wait, and all sessions open again when it is back, whatever pause they had."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.sessions.link_changed(False)
        traffic.put()
        await world.clock.sleep(5)
        assert traffic.sent == []
        traffic.sessions.link_changed(True)
        await world.clock.sleep(1)
        assert traffic.sent == [OWN]

    in_traffic(test)


def test_a_session_that_cannot_be_opened_is_tried_with_growing_pauses():
    """And the rows leave once it can; elections that change nothing do not hasten it."""

    async def test(world, hub, traffic):
        owns(hub)
        tries: list[float] = []
        opens = traffic.link.open

        async def fail() -> None:
            tries.append(world.clock.monotonic())
            if len(tries) < 4:
                raise DeviceConnectionError("d", "refused")
            await opens()

        traffic.link.open = fail
        traffic.put()
        for _ in range(200):
            await world.clock.sleep(0.1)
            owns(hub)
        pauses = [round(late - early) for early, late in itertools.pairwise(tries)]
        assert pauses == [1, 2, 4]
        assert traffic.sent == [OWN]

    in_traffic(test)


@pytest.mark.parametrize("turn", range(16))
def test_a_device_may_be_lost_at_every_step(turn):
    """Rows under way settle over its session, which is closed behind them; others wait."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(turn * STEP_S)
        loses(hub)
        await world.clock.sleep(5)
        assert not traffic.link.is_open
        traffic.put()
        await world.clock.sleep(5)
        assert not traffic.link.is_open
        assert len(traffic.sent) <= 1

    in_traffic(test)


@pytest.mark.parametrize("turn", range(16))
def test_the_hub_may_end_at_every_step(turn):
    """Every connection is closed, and no task is left behind."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.put()
        await world.clock.sleep(turn * STEP_S)
        traffic.is_over = True
        await traffic.sessions.end()
        await hub.devices.end()
        assert not traffic.link.is_open
        await world.clock.sleep(1)
        assert not traffic.link.is_open

    in_traffic(test)


@pytest.mark.parametrize("turn", range(40))
def test_a_frame_may_meet_rows_at_every_step(turn):
    """An election, a load with its close, and rows under way never cut each other."""

    async def test(world, hub, traffic):
        frame = world.tasks.create_task(hub.uplink(1))
        await world.clock.sleep(turn * STEP_S * 2)
        traffic.put()
        await world.clock.sleep(5)
        traffic.sessions.link_changed(True)
        assert frame.result().result == "processed"
        assert hub.flags.of("d") is Ownership.OWNER
        traffic.put()
        await world.clock.sleep(5)
        assert traffic.link.is_open
        assert traffic.sent == [OWN] * 2

    in_traffic(test)


def test_two_hubs_that_hear_a_device_hand_it_over_in_order():
    """The former owner closes by its notice; nobody is taken over."""

    async def test(world: World) -> None:
        hubs = [await world.hub(name) for name in ("h1", "h2")]
        flights = [Traffic(world, hub) for hub in hubs]
        assert (await hubs[0].uplink(1)).result == "processed"
        flights[0].put()
        await world.clock.sleep(1)
        assert hubs[0].link("d").is_open
        assert (await hubs[1].uplink(2)).result == "processed"
        flights[1].put()
        await world.clock.sleep(1)
        assert [hub.link("d").is_open for hub in hubs] == [False, True]
        await world.coordinator.elect(ElectionRequest(device_id="d", hub_id="h3", f_cnt=3))
        await world.clock.sleep(1)
        assert [hub.link("d").is_open for hub in hubs] == [False, False]
        for flight, hub in zip(flights, hubs, strict=True):
            await flight.sessions.end()
            await hub.devices.end()

    in_a_world(test)


def test_a_device_that_only_listens_has_its_session_while_this_hub_owns_it():
    """It opens without a row, survives rows, goes with the ownership and comes back with it."""

    async def test(world, hub, traffic):
        sessions = traffic.sessions
        sessions.listening("d", True)
        await world.clock.sleep(1)
        assert not traffic.link.is_open, "nobody knows whose device it is"
        owns(hub)
        await world.clock.sleep(1)
        assert traffic.link.is_open
        traffic.put()
        await world.clock.sleep(1)
        assert (traffic.sent, traffic.link.is_open) == ([OWN], True)
        loses(hub)
        await world.clock.sleep(1)
        assert not traffic.link.is_open
        hub.flags.set("d", Ownership.OWNER, 10, cause=Cause.REGAINED)
        await world.clock.sleep(1)
        assert traffic.link.is_open
        assert sessions.statistics().listening == 1
        sessions.listening("d", False)
        hub.devices.release("d")
        await world.clock.sleep(1)
        assert not traffic.link.is_open, "nothing uses it any more"
        assert sessions.statistics().listening == 0

    in_traffic(test)


def test_a_listening_device_has_its_session_again_after_a_loss_and_with_the_link():
    """After the pause, and at once when the hub's own session is back."""

    async def test(world, hub, traffic):
        owns(hub)
        traffic.sessions.listening("d", True)
        await world.clock.sleep(1)
        traffic.link.is_open = False
        traffic.sessions.session_ended("d", taken_over=False, certain=False)
        await world.clock.sleep(0.5)
        assert not traffic.link.is_open
        await world.clock.sleep(2)
        assert traffic.link.is_open
        traffic.link.is_open = False
        traffic.sessions.link_changed(False)
        await world.clock.sleep(5)
        assert not traffic.link.is_open
        traffic.sessions.link_changed(True)
        await world.clock.sleep(1)
        assert traffic.link.is_open

    in_traffic(test)


def test_sessions_of_listening_devices_are_bounded(monkeypatch):
    """The next one has its session when another ceases to listen; the hub itself has none."""
    monkeypatch.setattr(upstream_sessions, "LISTENING_MAX", 2)

    async def test(world, hub, traffic):
        names = ("d1", "d2", "d3")
        for name in (*names, "h1"):
            hub.flags.set(name, Ownership.OWNER, 5, cause=Cause.FIRST)
            traffic.sessions.listening(name, True)
        await world.clock.sleep(1)
        assert [hub.link(name).is_open for name in names] == [True, True, False]
        shown = traffic.sessions.statistics()
        assert (shown.listening, shown.listening_waiting) == (3, 1)
        traffic.sessions.listening("d1", False)
        await world.clock.sleep(1)
        assert hub.link("d3").is_open
        assert traffic.sessions.statistics().listening_waiting == 0

    in_traffic(test)
