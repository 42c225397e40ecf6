"""A random history of one hub and its journal: traffic, outages, restarts, kills, days at rest."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from edgehub.clock import ManualClock
from edgehub.journal.row_events import PUMP_IDLE, PUMP_OFFLINE, PUMP_PAUSED
from edgehub.message import UPSTREAM, EndpointId, FailureKind, Priority
from edgehub.store.maintenance.ageing import CHECK_S
from tests.support.journal import JournalHarness, journaling, state_copy
from tests.support.journal_format import check_equation, read_folder
from tests.support.stores import LAB, P0, P2, P7, a_message, a_result

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.message import Row
    from edgehub.store import StoreOptions

QUEUES = [(UPSTREAM, P0), (UPSTREAM, P7), (LAB, P2)]
DAY_S = 86_400
HUNG_S = 60.0
"""A history takes about a second."""


class Life:
    """See the module."""

    def __init__(
        self, directory: Path, seed: int, options: StoreOptions, *, reboots: bool = False
    ) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.options = options
        # An hour before midnight, so that one is met early.
        self.clock = ManualClock(wall_ms=1_700_002_800_000)
        self.reboots = reboots
        self.wrong_ms = 0
        self.path = directory / "0" / "queue.db"
        self.generation = 0
        self.flying: dict[tuple[EndpointId, Priority], list[Row]] = {key: [] for key in QUEUES}
        self.copies = 0
        self.journal: JournalHarness

    async def play(self, steps: int) -> list[dict[str, Any]]:
        """Live, end in order, and return the lines.

        Raises:
            TimeoutError: The journal does not end; the time-out of a test that tries many histories
                would be taken for one more failed history.
        """
        async with asyncio.timeout(HUNG_S), AsyncExitStack() as self.stack:
            await self.open()
            actions = [self.append, self.append, self.read, self.settle, self.settle, self.wait]
            actions += [self.write, self.pump, self.kill, self.restart, self.stand_still]
            actions += [self.move, self.purge, self.release]
            if self.reboots:
                actions += [self.reboot, self.reboot, self.set_clock]
            for _ in range(steps):
                await self.random.choice(actions)()
            await self.set_clock()
            await self.journal.end()
            depths = self.journal.depths()
            await self.journal.journal.write_out(close=True)
            assert self.journal.journal.statistics().corrections == 0
            assert self.journal.feed.bytes_waiting == 0
            assert await self.journal.hub.scalar("SELECT count(*) FROM journal") == 0
        lines = read_folder(self.path.parent / "journal")
        stops = [line for line in lines if line["event"] == "carried" and line["edge"] == "stop"]
        last = [line for line in stops if line["commit"] == lines[-1]["commit"]]
        found = {
            (line["endpoint"], line.get("priority", 0)): (line["rows"], line["bytes"])
            for line in last
        }
        assert found == depths
        left = check_equation(lines)
        assert {queue: figures for (_, queue), figures in left.items()} == depths
        return lines

    async def open(self) -> None:
        """Open the current files."""
        self.journal = await self.stack.enter_async_context(
            journaling(self.path, clock=self.clock, options=self.options)
        )
        for rows in self.flying.values():
            rows.clear()

    async def append(self) -> None:
        """Hand in messages, some of them for two endpoints."""
        for _ in range(self.random.choice([1, 4, 60])):
            targets = self.random.sample(QUEUES, self.random.choice([1, 1, 2]))
            results = [
                a_result(
                    priority, endpoint_id=endpoint, ttl_s=self.random.choice([None, 9, 90_000])
                )
                for endpoint, priority in targets
                if endpoint != UPSTREAM or priority == targets[0][1]
            ]
            device = self.random.choice(["a", "b", "ç"])
            self.journal.hub.send(
                a_message(device, module=self.random.choice([None, "m"])), *results
            )
            self.copies += len(results)
        await self.journal.hub.store.writer.flush()

    async def read(self) -> None:
        """Take rows into flight."""
        key = self.random.choice(QUEUES)
        for queue in self.journal.hub.store.queues.of(key[0]):
            if queue.priority == key[1]:
                self.flying[key] += await queue.read_batch(self.random.choice([1, 30]), 1 << 20)

    async def settle(self) -> None:
        """Let rows in flight leave, or come back."""
        key = self.random.choice(QUEUES)
        rows, self.flying[key] = self.flying[key], []
        if not rows:
            return
        queue = self.journal.hub.queue(key[1], key[0])
        match self.random.choice(["sent", "sent", "sent", "expired", "dead", "refused", "back"]):
            case "sent":
                queue.confirm(rows)
            case "expired":
                queue.expire(rows)
            case "dead":
                for row in rows:
                    queue.dead_letter(row, FailureKind.REJECTED, "no")
            case "refused":
                queue.give_back(rows, attempted=True, refusal="transient: busy")
            case _:
                queue.give_back(rows, attempted=False)
        if self.random.random() < 0.5:
            await self.journal.hub.store.writer.flush()

    async def move(self) -> None:
        """Move what waits in one queue to another one."""
        source, target = self.random.sample(QUEUES, 2)
        store = self.journal.hub.store
        await store.purger.take_out(
            store.queues.get(*source),
            store.queues.get(*target),
            from_offset=0,
            through=store.last_offset,
        )

    async def purge(self) -> None:
        """Remove what waits in one queue, up to some row."""
        store = self.journal.hub.store
        through = self.random.randrange(store.last_offset + 1)
        queue = store.queues.get(*self.random.choice(QUEUES))
        await store.purger.take_out(queue, None, from_offset=0, through=through)

    async def release(self) -> None:
        """Send dead letters back, or away."""
        store = self.journal.hub.store
        letters = await store.inspection.dead_letters(limit=30)
        chosen = [letter.id for letter in letters if self.random.random() < 0.5]
        if self.random.random() < 0.7:
            await store.requeuer.requeue(chosen)
        else:
            await store.requeuer.purge(chosen)

    async def wait(self) -> None:
        """Let time pass, clean-up included."""
        await self.clock.advance(self.random.choice([0.06, 7, 1800]))
        await self.journal.hub.store.writer.flush()

    async def write(self) -> None:
        """Write lines."""
        await self.journal.journal.write_out(close=self.random.random() < 0.2)

    async def pump(self) -> None:
        """Let the pump of one endpoint do something else."""
        state = self.random.choice([PUMP_OFFLINE, PUMP_PAUSED, 0, PUMP_IDLE])
        self.journal.feed.pump_changed(UPSTREAM, state)

    async def kill(self) -> None:
        """Go on with a copy of the files."""
        await self.journal.hub.store.writer.flush()
        self.generation += 1
        copy = state_copy(self.path, self.directory / str(self.generation))
        await self.stack.aclose()
        self.path = copy
        await self.open()

    async def restart(self) -> None:
        """Stop in order and start."""
        for key, rows in self.flying.items():
            if rows:
                self.journal.hub.queue(key[1], key[0]).give_back(rows, attempted=False)
                rows.clear()
        await self.journal.end()
        await self.stack.aclose()
        await self.open()

    async def stand_still(self) -> None:
        """Let days pass in which the hub does not run."""
        if self.random.random() < 0.5:
            await self.journal.end()
        await self.journal.hub.store.writer.flush()
        await self.stack.aclose()
        await self.clock.advance(self.random.choice([0.3, 1.1, 3]) * DAY_S)
        await self.open()

    async def reboot(self) -> None:
        """Cut the power, or stop in order, and boot with a clock that is set or begins in 1970."""
        if self.random.random() < 0.5:
            await self.journal.end()
        await self.journal.hub.store.writer.flush()
        await self.stack.aclose()
        off_ms = self.random.choice([0, 60_000, 5 * 3_600_000, 30 * 3_600_000])
        true_ms = self.clock.wall_ms() + self.wrong_ms + off_ms
        boot_id = f"boot-{self.random.random()}"
        if self.random.random() < 0.3:
            self.wrong_ms = 0
            self.clock = ManualClock(wall_ms=true_ms, boot_id=boot_id)
        else:
            self.clock = ManualClock(wall_ms=1_000_000, boot_id=boot_id, is_synchronized=False)
            self.wrong_ms = true_ms - 1_000_000
        await self.open()

    async def set_clock(self) -> None:
        """Let NTP set the clock, and the hub notice."""
        self.clock.step_wall(self.wrong_ms)
        self.wrong_ms = 0
        self.clock.is_synchronized = True
        store = self.journal.hub.store
        await self.journal.hub.until(lambda: store.statistics().clock.trusted, tick_s=CHECK_S)
        await self.journal.hub.until(lambda: not store.statistics().clock.ageing)
