"""Messages of MQTT and HTTP devices: which are elected, in which order they are handed on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.devices.affinity.coordinator import ElectedFrame, ElectionRequest, ElectionResult
from edgehub.devices.affinity.in_process import InProcessCoordinator
from edgehub.devices.election_queue import ElectionQueue, sequence_of
from edgehub.devices.faults import CoordinatorUnreachableError, MessageRefusedError
from edgehub.devices.source import Activation, Deduplication
from edgehub.message import Message, Refusal
from edgehub.mqtt.property_bag import DUPLICATE_PROPERTY
from tests.support.affinity_hubs import Hub, World, in_a_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.devices.affinity.stored_frames import Commit, StoredFrame


def a_message(sequence=None, *, body: bytes = b"", device: str = "d", module=None) -> Message:
    """Make a message, with a number or without."""
    properties = {} if sequence is None else {"sequence": str(sequence)}
    return Message(device, module, "/messages/", properties, {}, body)


@pytest.mark.parametrize(
    ("value", "sequence"),
    [
        ("0", 0),
        ("4294967295", 2**32 - 1),
        ("4294967296", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        (None, None),
        ("٣", None),
        ("00000000001", None),
        ("007", 7),
        ("true", None),
        ("True", None),
        ("1.0", None),
        ("1e3", None),
        ("0x1", None),
        ("+1", None),
        (" 1", None),
        ("1_000", None),
        ("-0", None),
        ("nan", None),
        ("²", None),
        ("9" * 5000, None),
    ],
)
def test_a_number_is_a_whole_one_of_32_bits(value, sequence):
    """Everything else is a message without a number."""
    assert sequence_of(Message("d", None, "/messages/", {"sequence": value}, {}, b"")) == sequence


def test_a_modules_message_has_no_number():
    """Modules live on one hub."""
    assert sequence_of(a_message(5, module="m")) is None


class Coordinator(InProcessCoordinator):
    """May be away."""

    is_away = False

    async def elect(self, ballot: ElectionRequest) -> ElectionResult:
        """See `Coordinator`."""
        if self.is_away:
            raise CoordinatorUnreachableError(ballot.device_id, "away")
        return await super().elect(ballot)


class Head:
    """Hands in messages, and remembers what became of them."""

    def __init__(self, world: World, hub: Hub) -> None:
        self.clock = world.clock
        self.stored: list[tuple[str, float]] = []
        self.settled: dict[int, Refusal | None] = {}
        self.rejected: list[tuple[str, int, str]] = []
        self.refuse: Refusal | None = None
        self.stalled: list[Callable[[], None]] | None = None
        """Commits that wait for the disk, None = it is well."""
        self.devices = hub.devices
        self.queue = ElectionQueue(
            hub.devices,
            self.store,
            frames=self,
            tasks=world.tasks,
            rejected=lambda *told: self.rejected.append(told),
        )
        self._tokens = 0

    def store(self, message: Message, settle, token: int) -> None:
        """Commit a message a moment later, as the router and the store do."""

        def commit() -> None:
            if self.stalled is not None:
                self.stalled.append(commit)
                return
            text = message.body.decode() + ("!" if DUPLICATE_PROPERTY in message.properties else "")
            self.stored.append((text, self.clock.monotonic()))
            settle(token, None)

        if self.refuse is None:
            self.clock.call_later(0.01, commit)
        else:
            settle(token, self.refuse)

    def go_on(self) -> None:
        """Commit what was stalled."""
        stalled, self.stalled = self.stalled or [], None
        for commit in stalled:
            commit()

    def append(self, message: Message, frame: StoredFrame) -> Commit | None:
        """Stand in for `StoredFrames`: there is no file."""
        del frame
        commit: Commit = asyncio.get_running_loop().create_future()

        def settle(_token: int, refusal: Refusal | None) -> None:
            commit.set_result(refusal)

        self.store(message, settle, 0)
        if not commit.done():
            return commit
        if (refusal := commit.result()) is not None:
            raise MessageRefusedError(message.device_id, refusal)
        return None

    def hand_in(self, *messages: Message) -> None:
        """Hand in messages at once."""
        for message in messages:
            self._tokens += 1
            self.queue.submit(message, self.settled.__setitem__, self._tokens)

    def frames(self) -> dict[str, int]:
        """Return the numbered messages by what became of them."""
        return self.devices.statistics().frames

    @property
    def texts(self) -> list[str]:
        """What was stored, in order."""
        return [text for text, _ in self.stored]


async def written(world: World) -> int:
    """Return the counter in the device's source."""
    return (await world.registry.load("d")).session.f_cnt_up


def with_a_head(test, **hub_options) -> None:
    """Run a test with a hub whose links take no time."""

    async def run(world: World) -> None:
        world.coordinator = Coordinator(world.clock, incarnation="one")
        world.put("d", gap_max=None, **hub_options)
        hub = await world.hub("h1")
        await test(world, Head(world, hub))

    in_a_world(run)


def test_messages_of_a_device_keep_their_order():
    """Also those without a number that come behind one that is elected."""

    async def test(world, head):
        head.hand_in(
            a_message(body=b"a"),
            a_message(1, body=b"b"),
            a_message(body=b"c"),
            a_message(2, body=b"d"),
            a_message(body=b"x", device="other"),
        )
        await world.clock.sleep(5)
        assert [text for text in head.texts if text != "x"] == ["a", "b", "c", "d"]
        assert head.texts.index("x") < head.texts.index("b"), "others do not wait"
        assert head.settled == dict.fromkeys(range(1, 6))
        assert head.queue.waiting == 0

    with_a_head(test)


def test_more_messages_than_a_device_queue_holds_are_taken():
    """They wait here, bounded by what the head lets through."""

    async def test(world, head):
        head.hand_in(*(a_message(number, body=b"%d" % number) for number in range(1, 301)))
        await world.clock.sleep(60)
        assert head.texts == [str(number) for number in range(1, 301)]
        assert set(head.settled.values()) == {None}

    with_a_head(test)


def test_a_duplicate_is_acknowledged_and_dropped():
    """Another hub has it; the loser waits before it asks."""

    async def test(world, head):
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        await world.coordinator.elect(ElectionRequest(device_id="d", hub_id="h2", f_cnt=2))
        await world.coordinator.report_stored("h2", [ElectedFrame("d", 0, 2)])
        await world.clock.sleep(5)
        begun = world.clock.monotonic()
        head.hand_in(a_message(2, body=b"b"))
        await world.clock.sleep(5)
        assert head.texts == ["a"]
        assert head.settled == {1: None, 2: None}
        head.hand_in(a_message(3, body=b"c"))
        await world.clock.sleep(5)
        assert head.texts == ["a", "c"]
        assert head.stored[-1][1] - begun >= 5.4

    with_a_head(test)


def test_a_message_that_is_sent_again_is_stored_once():
    """Its PUBACK got lost; the device gets one, and nobody a second row."""

    async def test(world, head):
        head.hand_in(a_message(7, body=b"a"))
        await world.clock.sleep(5)
        head.hand_in(*[a_message(7, body=b"a")] * 5)
        await world.clock.sleep(5)
        assert head.texts == ["a"]
        assert set(head.settled.values()) == {None}

    with_a_head(test)


def test_an_old_number_is_refused_and_reported():
    """Once for the journal; a device that begins again with 0 or 1 is heard."""

    async def test(world, head):
        head.hand_in(a_message(100_000, body=b"a"), a_message(50, body=b"old"))
        await world.clock.sleep(5)
        assert head.texts == ["a"]
        assert head.rejected == [("d", 3, "invalid_frame_counter")]
        head.hand_in(a_message(0, body=b"b"), a_message(1, body=b"c"))
        await world.clock.sleep(5)
        assert head.texts == ["a", "b", "c"]

    with_a_head(test, activation=Activation.ABP)


def test_no_answer_is_no_loss():
    """The sender is told to come again, and its message is taken then."""

    async def test(world, head):
        world.coordinator.is_away = True
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        assert head.settled == {1: Refusal.UNAVAILABLE}
        world.coordinator.is_away = False
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        assert head.texts == ["a"]

    with_a_head(test)


def test_what_waits_behind_one_that_failed_fails_with_it():
    """Else the later ones would be taken, and it would be an old one when it comes again."""

    async def test(world, head):
        asked = world.coordinator.elect

        async def hang_once(ballot: ElectionRequest) -> ElectionResult:
            world.coordinator.elect = asked
            await world.clock.sleep(4)
            raise CoordinatorUnreachableError(ballot.device_id, "no answer in time")

        world.coordinator.elect = hang_once
        burst = [
            *(a_message(number, body=b"%d" % number) for number in (1, 2)),
            a_message(body=b"unnumbered"),
            a_message(3, body=b"3"),
        ]
        head.hand_in(*burst)
        await world.clock.sleep(20)
        refused = Refusal.UNAVAILABLE
        assert head.settled == {1: refused, 2: refused, 3: None, 4: refused}
        assert head.texts == ["unnumbered"]
        assert head.queue.waiting == 0
        assert head.frames() == {"coordinator_unreachable": 3}
        head.hand_in(*burst)
        await world.clock.sleep(20)
        assert head.texts == ["unnumbered", "1", "2", "unnumbered", "3"]

    with_a_head(test)


def test_a_message_that_the_store_refuses_does_not_count():
    """Its repetition is tried; the sender hears the store's own word."""

    async def test(world, head):
        head.refuse = Refusal.LIMIT
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        assert head.settled == {1: Refusal.LIMIT}
        head.refuse = None
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        assert head.texts == ["a"]

    with_a_head(test)


def test_a_turn_ends_before_the_commit():
    """While the disk is stalled, later messages are elected and the device's queue is idle."""

    async def test(world, head):
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        head.stalled = []
        head.hand_in(a_message(2, body=b"b"), a_message(3, body=b"c"))
        await world.clock.sleep(5)
        device = head.devices.known("d")
        assert device.session.f_cnt_up == 3
        assert device.queue.is_idle
        assert not device.is_idle, "it must not be evicted while it is committed"
        assert head.queue.waiting == 0
        assert head.settled == {1: None}
        head.go_on()
        await world.clock.sleep(1)
        assert head.texts == ["a", "b", "c"]
        assert head.settled == dict.fromkeys((1, 2, 3))
        assert device.is_idle

    with_a_head(test)


def test_a_repetition_waits_for_the_commit_of_what_it_repeats():
    """Acknowledged before, it would be lost with a crash."""

    async def test(world, head):
        head.stalled = []
        head.hand_in(a_message(1, body=b"a"), *[a_message(1, body=b"a")] * 5)
        await world.clock.sleep(5)
        assert head.settled == {}
        head.go_on()
        await world.clock.sleep(1)
        assert head.texts == ["a"]
        assert head.settled == dict.fromkeys(range(1, 7))

    with_a_head(test)


def test_only_counters_of_durable_messages_are_written():
    """With a higher one, a message that a crash took would be a repetition when it comes again."""

    async def test(world, head):
        for number in range(1, 16):
            head.hand_in(a_message(number, body=b"%d" % number))
            await world.clock.sleep(1)
        assert 10 <= await written(world) <= 15
        head.stalled = []
        head.hand_in(*(a_message(number) for number in range(16, 60)))
        await world.clock.sleep(5)
        assert head.devices.known("d").session.f_cnt_up == 59
        assert await written(world) <= 15
        head.go_on()
        head.hand_in(a_message(60))
        await world.clock.sleep(1)
        assert await written(world) == 59

    with_a_head(test)


def test_a_device_that_begins_again_holds_its_turn_until_that_is_written():
    """Else its next number would be an old one after a crash."""

    async def test(world, head):
        for number in (100, 120):
            head.hand_in(a_message(number))
            await world.clock.sleep(5)
        assert await written(world) == 100
        head.stalled = []
        head.hand_in(a_message(0, body=b"a"), a_message(1, body=b"b"))
        await world.clock.sleep(5)
        assert head.queue.waiting == 2
        assert await written(world) == 100
        head.go_on()
        await world.clock.sleep(1)
        assert await written(world) <= 1
        assert head.texts[-2:] == ["a", "b"]

    with_a_head(test, activation=Activation.ABP)


def test_a_marked_duplicate_says_so():
    """With deduplication `mark` all hubs send, the later ones with the mark."""

    async def test(world, head):
        await world.coordinator.elect(ElectionRequest(device_id="d", hub_id="h2", f_cnt=1))
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        assert head.texts == ["a!"]

    with_a_head(test, deduplication=Deduplication.MARK)


def test_a_device_of_another_gateway_is_refused():
    """Nobody is asked, and the journal hears of it."""

    async def test(world, head):
        head.hand_in(a_message(1, body=b"a"))
        await world.clock.sleep(5)
        assert head.texts == []
        assert head.rejected == [("d", 1, "belongs_to_another_gateway")]
        assert world.coordinator.known("d") is None

    with_a_head(test, gateway_id="h2")


def test_a_hub_that_fails_leaves_no_caller_without_an_answer():
    """What waits is refused as closed when its task ends."""

    async def test(world, head):
        head.hand_in(a_message(1), a_message(2))
        await world.clock.sleep(0.05)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "election-queue[d]"]
        task.cancel()
        await world.clock.sleep(5)
        assert head.settled == {1: Refusal.CLOSED, 2: Refusal.CLOSED}

    with_a_head(test)
