"""Turns between the devices of a queue, order, and devices that may not send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.devices.upstream_sessions import SendState
from edgehub.message import DEFAULT_PRIORITY, FailureKind
from edgehub.pump.fair_queue import (
    READ_ROWS,
    STAGED_MAX,
    STAGED_OF_ONE_MAX,
    FairQueue,
    FairQueues,
)
from tests.support.memory_queue import MemoryQueue, a_row


class Sessions:
    """Says what the test says, and counts what it is told."""

    def __init__(self) -> None:
        self.of: dict[str, SendState] = {}
        self.rows: dict[str, int] = {}
        self.under_way: dict[str, int] = {}
        self.told = []

    def send_state(self, device_id: str) -> SendState:
        """See `UpstreamSessions`."""
        return self.of.get(device_id, SendState.OPEN)

    def count_staged(self, device_id: str, rows: int) -> None:
        """See `UpstreamSessions`."""
        self.rows[device_id] = self.rows.get(device_id, 0) + rows
        assert self.rows[device_id] >= 0

    def count_in_flight(self, device_id: str, rows: int) -> None:
        """See `UpstreamSessions`."""
        self.under_way[device_id] = self.under_way.get(device_id, 0) + rows
        assert self.under_way[device_id] >= 0

    def add_listener(self, told) -> None:
        """See `UpstreamSessions`."""
        self.told.append(told)

    def remove_listener(self, told) -> None:
        """See `UpstreamSessions`."""
        self.told.remove(told)

    def change(self, device_id: str, state: SendState) -> None:
        """Say something else from now on."""
        self.of[device_id] = state
        for told in self.told:
            told(device_id)


def a_row_of(sender: str, offset: int):
    """Make a row of a device, or of a module of it."""
    device, _, module = sender.partition("/")
    return a_row(offset, device=device, module=module or None)


class Bench:
    """A queue in memory with rows of devices, and its fair queue."""

    def __init__(self, senders: str) -> None:
        self.sessions = Sessions()
        self.store = MemoryQueue("upstream", DEFAULT_PRIORITY)
        self.store.put(
            *(a_row_of(name, offset) for offset, name in enumerate(senders.split(), start=1))
        )
        self.woken = 0
        self.queue = FairQueue(self.store, self.sessions, self._wake)

    def _wake(self, queue) -> None:
        assert queue is self.queue
        self.woken += 1

    async def read(self, rows_max: int = 100) -> list[int]:
        """Take rows; gives their offsets."""
        self.rows = await self.queue.read_batch(rows_max, 10**9)
        return [row.offset for row in self.rows]


async def test_devices_take_turns():
    """One row each, whatever the backlog of one is; the order of each device stays."""
    bench = Bench("a a a a b c b")
    assert await bench.read() == [1, 5, 6, 2, 7, 3, 4]
    assert bench.sessions.under_way == {"a": 4, "b": 2, "c": 1}
    bench.queue.confirm(bench.rows)
    assert bench.store.confirmed == [1, 5, 6, 2, 7, 3, 4]
    assert set(bench.sessions.under_way.values()) == {0}


async def test_turns_go_on_over_batches():
    """Who was served last in one batch is last in the next."""
    bench = Bench("a a a b b c")
    assert [await bench.read(2) for _ in range(4)] == [[1, 4], [6, 2], [5, 3], []]


async def test_a_backlog_leaves_places_to_others():
    """Of one device a few rows are read ahead; the rest of the queue is reached all the same."""
    bench = Bench("a " * 5 * STAGED_OF_ONE_MAX + "b")
    last = 5 * STAGED_OF_ONE_MAX + 1
    assert await bench.read(2) == [1, last]
    seen = []
    while batch := await bench.read(10):
        seen += batch
    assert seen == list(range(2, last))


async def test_no_more_is_read_ahead_than_has_its_place():
    """However many devices wait for their sessions; the others of the queue wait for a place."""
    count = STAGED_MAX + 3 * READ_ROWS
    bench = Bench(" ".join(["blocked", *(f"d{number}" for number in range(count))]))
    bench.sessions.of = {f"d{number}": SendState.OPENING for number in range(count)} | {
        "blocked": SendState.BLOCKED
    }
    for _ in range(3):
        assert await bench.read() == []
        assert bench.queue.staged == STAGED_MAX == sum(bench.sessions.rows.values())
        assert not bench.queue.has_ready()
    bench.sessions.change("d7", SendState.OPEN)
    # Its row, the second of the queue behind that of a device that may not send, frees one place.
    assert await bench.read() == [9]
    await bench.read()
    assert bench.queue.staged == STAGED_MAX


async def test_a_device_that_may_not_send_keeps_no_place():
    """Its rows stay in the queue, and come in order once it has one."""
    bench = Bench("a b a b a")
    bench.sessions.change("a", SendState.BLOCKED)
    assert await bench.read() == [2, 4]
    assert bench.queue.staged == 0
    assert not bench.queue.has_ready()
    bench.sessions.change("a", SendState.OPEN)
    assert bench.woken
    assert await bench.read() == [1, 3, 5]


async def test_a_device_whose_session_opens_is_waited_for():
    """Its rows are staged, so that its session is asked for; others do not wait."""
    bench = Bench("a b")
    bench.sessions.of["a"] = SendState.OPENING
    assert await bench.read() == [2]
    assert bench.sessions.rows["a"] == 1
    assert not bench.queue.has_ready()
    bench.sessions.change("a", SendState.OPEN)
    assert bench.woken == 1
    assert await bench.read() == [1]


async def test_a_lost_device_gives_its_rows_back():
    """What was staged goes to its place; what is under way comes back by the pump."""
    bench = Bench("a a a")
    assert await bench.read(1) == [1]
    bench.sessions.change("a", SendState.BLOCKED)
    assert [row.offset for row in bench.store.rows] == [2, 3]
    bench.queue.give_back(bench.rows, attempted=False)
    bench.sessions.change("a", SendState.OPEN)
    assert await bench.read() == [1, 2, 3]


async def test_a_row_that_comes_back_is_not_overtaken():
    """Rows of its device that were staged behind it go back too."""
    bench = Bench("a a a b")
    assert await bench.read(1) == [1]
    bench.queue.give_back(bench.rows, attempted=True, refusal="transient")
    assert [row for row in await bench.read() if row != 4] == [1, 2, 3]


async def test_a_sender_that_the_pump_holds_is_held():
    """Also what was staged of it, and after its state changed; its release lets it go on."""
    bench = Bench("a a b")
    assert await bench.read(1) == [1]
    bench.queue.give_back(bench.rows, attempted=True)
    bench.queue.hold("a")
    bench.sessions.change("a", SendState.BLOCKED)
    bench.sessions.change("a", SendState.OPEN)
    assert await bench.read() == [3]
    bench.queue.release("a")
    assert await bench.read() == [1, 2]


async def test_a_release_does_not_open_a_session():
    """A device that may not send stays back when the pump lets it go."""
    bench = Bench("a a")
    bench.queue.hold("a")
    bench.sessions.change("a", SendState.BLOCKED)
    bench.queue.release("a")
    assert await bench.read() == []
    bench.sessions.change("a", SendState.OPEN)
    assert await bench.read() == [1, 2]


async def test_modules_of_a_device_share_its_turns():
    """They have its session; each is kept back and let go with it."""
    bench = Bench("a a/m b a/m")
    bench.sessions.change("a", SendState.BLOCKED)
    assert await bench.read() == [3]
    bench.sessions.change("a", SendState.OPEN)
    assert await bench.read() == [1, 2, 4]


async def test_every_end_of_a_row_is_counted():
    """Confirmed, expired, dead or back: it is under way no more."""
    bench = Bench("a b c d")
    await bench.read()
    one, two, three, four = bench.rows
    bench.queue.confirm([one])
    bench.queue.expire([two])
    bench.queue.dead_letter(three, FailureKind.REJECTED, "no")
    bench.queue.give_back([four], attempted=False)
    assert bench.sessions.under_way == dict.fromkeys("abcd", 0)
    assert (bench.store.confirmed, bench.store.expired) == ([1], [2])
    assert bench.store.dead == [(3, FailureKind.REJECTED, "no")]


async def test_the_end_puts_back_what_is_staged():
    """Nothing stays in flight that no pump will send."""
    bench = Bench("a a b b")
    dealt = FairQueues(lambda: [bench.store], bench.sessions)
    (queue,) = dealt()
    assert dealt() == [queue]
    await queue.read_batch(1, 10**9)
    dealt.close()
    assert [row.offset for row in bench.store.rows] == [2, 3, 4]
    assert len(bench.sessions.told) == 1, "it hears of no change any more"


class Play:
    """Lets things happen to a queue of devices, and checks what it gives."""

    def __init__(self, senders: list[str]) -> None:
        self.bench = Bench(" ".join(senders))
        self.flying: list = []
        self.delivered: list[int] = []
        self.held: set[str] = set()

    async def step(self, step: str, name: str, count: int) -> None:
        """Let one thing happen."""
        match step:
            case "read":
                await self.read(count)
            case "confirm":
                done, self.flying = self.flying[:count], self.flying[count:]
                self.confirm(done)
            case "back":
                # As the pump does for a refused row: what follows it of its sender comes again.
                back = [row for row in self.flying if row.message.sender == name]
                self.flying = [row for row in self.flying if row.message.sender != name]
                self.bench.queue.give_back(back, attempted=False)
            case "hold" if name not in self.held:
                self.held.add(name)
                self.bench.queue.hold(name)
            case "go" if name in self.held:
                self.held.discard(name)
                self.bench.queue.release(name)
            case "blocked" | "open" | "opening":
                self.bench.sessions.change(name, SendState(step))

    async def read(self, count: int) -> None:
        """Take rows; none comes of a sender that is held or may not send."""
        await self.bench.read(count)
        shut = {key for key, state in self.bench.sessions.of.items() if state is not SendState.OPEN}
        senders = {row.message.sender for row in self.bench.rows}
        assert not senders & (self.held | shut)
        self.flying += self.bench.rows

    def confirm(self, rows: list) -> None:
        """Confirm rows that are under way."""
        self.bench.queue.confirm(rows)
        self.delivered += [row.offset for row in rows]

    async def finish(self) -> None:
        """Open all sessions and let everything leave."""
        for name in "abc":
            self.bench.sessions.change(name, SendState.OPEN)
        for name in self.held:
            self.bench.queue.release(name)
        self.held.clear()
        self.confirm(self.flying)
        while await self.bench.read(7):
            self.confirm(self.bench.rows)


@given(
    senders=st.lists(st.sampled_from("abc"), min_size=20, max_size=60),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["read", "confirm", "back", "blocked", "open", "opening", "hold", "go"]
            ),
            st.sampled_from("abc"),
            st.integers(1, 9),
        ),
        min_size=25,
        max_size=60,
    ),
)
async def test_no_row_is_lost_doubled_or_overtaken(senders, steps):
    """Whatever happens, all rows leave in the end, each device's in the order of the queue."""
    play = Play(senders)
    for step in steps:
        await play.step(*step)
    await play.finish()
    assert sorted(play.delivered) == list(range(1, len(senders) + 1))
    sender_of = dict(enumerate(senders, start=1))
    for name in "abc":
        own = [offset for offset in play.delivered if sender_of[offset] == name]
        assert own == sorted(own)
    assert play.bench.queue.staged == 0
