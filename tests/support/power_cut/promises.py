"""What the store had promised by some moment of a recorded run, and whether an image keeps it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgehub.clock import ManualClock
from edgehub.errors import StartupError, StoreCorruptError
from edgehub.message import NEVER_MS
from edgehub.store import Store
from tests.support.journal_format import OUT, check_copies, check_equation, read_folder
from tests.support.power_cut.records import Kind
from tests.support.power_cut.workload import DEAD_LETTERS_MAX, OPTIONS, make_journal, token_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.power_cut.records import Record

HUNG_S = 20.0
"""Looking at an image takes a fraction of a second."""

Copy = tuple[int, str]
"""Token of a message, and the queue it waits in."""


class Promises:
    """Follows the marks of `tests.support.power_cut.workload`."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._expires_ms: dict[Copy, int] = {}
        self._queues: dict[int, list[str]] = {}
        self._highest_offset = 0
        self._offsets: dict[Copy, int] = {}
        self._early: dict[Copy, int] = {}
        """Of copies that had left by then: never written, and in the journal after a flush."""
        self._waiting: set[Copy] = set()
        self._leaving: set[Copy] = set()
        self._left: set[Copy] = set()
        self._dead: dict[Copy, int] = {}
        """Copies given up, and how many flushes had ended by then."""
        self._flushes = 0
        self._notes: dict[str, str] = {}
        self._unsure: set[str] = set()

    def play(self, records: Iterable[Record]) -> None:
        """Record the marks among these records."""
        for record in records:
            if record.kind is Kind.MARK:
                self._take(record.words)

    @property
    def stored(self) -> int:
        """Count the copies that must be found."""
        return sum(1 for copy in self._waiting if self._expires_ms[copy] > self._now_ms)

    async def broken_by(self, folder: Path) -> list[str]:
        """Open an image by way of a real recovery and list what it does not keep."""
        clock = ManualClock(boot_id="boot-2")
        try:
            path = folder / "site" / "data" / "queue.db"
            store = await Store.open(path, clock=clock, options=OPTIONS)
        except StartupError as error:
            return [f"not to be opened: {error}"]
        faults: list[str] = []
        try:
            if store.damage is not None:
                return [f"damaged: {store.damage.reason}"]
            faults += await self._check_rows(store)
            faults += await self._check_file(store)
            async with asyncio.timeout(HUNG_S):
                faults += await self._check_journal(store, path, clock)
        except* StoreCorruptError as group:
            faults.append(f"not to be read: {group.exceptions}")
        except* TimeoutError:
            # A commit that fails waits for the next try on a clock that stands still.
            faults.append(f"nothing can be stored: {store.statistics().failing}")
        finally:
            await store.close()
        return faults

    def _take(self, words: list[str]) -> None:
        match words:
            case ["now", now_ms]:
                self._now_ms = int(now_ms)
            case ["sent", token, *queues]:
                for name, ttl_ms in (queue.split(":") for queue in queues):
                    expires_ms = self._now_ms + int(ttl_ms) if int(ttl_ms) else NEVER_MS
                    self._expires_ms[int(token), name] = expires_ms
                    self._queues.setdefault(int(token), []).append(name)
            case ["stored", token, offset]:
                self._stored(int(token), int(offset))
            case ["leaves", token, queue, fate]:
                copy = (int(token), queue)
                self._waiting.discard(copy)
                self._leaving.add(copy)
                if fate == "dead":
                    self._dead[copy] = self._flushes
            case ["flushed"]:
                self._left |= self._leaving
                self._leaving = set()
                self._offsets |= self._early
                self._early = {}
                self._flushes += 1
            case ["begins", key]:
                self._unsure.add(key)
            case ["noted", key, value]:
                self._unsure.discard(key)
                self._notes[key] = value
            case _:
                raise AssertionError(words)

    def _stored(self, token: int, first_offset: int) -> None:
        self._highest_offset = max(self._highest_offset, first_offset)
        for offset, queue in enumerate(self._queues[token], first_offset):
            copy = (token, queue)
            if copy not in self._leaving:
                self._waiting.add(copy)
            has_left = copy in self._leaving and copy not in self._dead
            (self._early if has_left else self._offsets)[copy] = offset

    async def _check_rows(self, store: Store) -> list[str]:
        faults: list[str] = []
        found: set[Copy] = set()
        for queue in store.queues.all():
            name = f"{queue.endpoint_id}/{queue.priority}"
            tokens: list[int] = []
            while rows := await queue.read_batch(1000, 1 << 30):
                tokens += [token_of(row.message) for row in rows]
            if tokens != sorted(set(tokens)):
                faults.append(f"{name} is out of order")
            found.update((token, name) for token in tokens)
            sql = f"SELECT count(*), coalesce(sum(size), 0) FROM q_{queue.number}"
            counted = await store.database.run(lambda conn, sql=sql: conn.execute(sql).fetchone())
            figures = queue.statistics()
            if counted != (figures.depth, figures.bytes):
                faults.append(f"{name} holds {counted}, says {figures.depth}, {figures.bytes}")
        missing = [copy for copy in self._waiting - found if self._expires_ms[copy] > self._now_ms]
        if missing:
            faults.append(f"lost: {len(missing)} of {self.stored}, {sorted(missing)[:3]}")
        back = self._left & found
        if back:
            faults.append(f"came back: {sorted(back)[:3]}")
        return faults + await self._check_dead_letters(store, found)

    async def _check_dead_letters(self, store: Store, found: set[Copy]) -> list[str]:
        """Check that copies given up are dead letters, apart from the oldest beyond the bound.

        One commit may write the dead letters of several queues, in any order where they were given
        up in the same millisecond. Only a flush between two of them decides which is older.
        """
        letters = await store.inspection.dead_letters(limit=1000)
        dead: set[Copy] = set()
        for each in letters:
            letter = await store.inspection.dead_letter(each.id)  # with its body
            assert letter is not None
            dead.add((token_of(letter.message), f"{letter.endpoint_id}/{letter.priority}"))
        faults: list[str] = []
        if dead & found:
            faults.append(f"dead and alive: {sorted(dead & found)[:3]}")
        missing = {
            copy
            for copy, flushes in self._dead.items()
            if copy not in dead
            and copy in self._offsets
            and (flushes < self._flushes or (copy not in found and self._lasts(copy)))
        }
        # Ids rise by one, and the lowest leave: those below the first one were there.
        evicted = letters[0].id - 1 if letters else 0
        if len(missing) > evicted:
            faults.append(f"neither dead nor alive: {len(missing)}, evicted: {evicted}")
        if evicted and len(letters) != DEAD_LETTERS_MAX:
            faults.append(f"{evicted} dead letters were evicted, {len(letters)} are left")
        oldest = min((self._dead[copy] for copy in dead), default=0)
        younger = [copy for copy in missing if self._dead[copy] > oldest]
        if younger:
            faults.append(f"evicted before older ones: {sorted(younger)[:3]}")
        return faults

    async def _check_journal(self, store: Store, path: Path, clock: ManualClock) -> list[str]:
        """Let the journal write what is left, and look for every copy in it."""
        journal = make_journal(store, path, clock)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(store.run())
            await store.writer.flush()
            await journal.write_out(close=True)
            running.cancel()
        faults: list[str] = []
        if journal.statistics().corrections:
            faults.append("the journal and the rows disagree")
        try:
            lines = read_folder(path.parent / "journal")
            told = check_copies(lines)
            check_equation(lines)
        except AssertionError as error:
            return [*faults, f"the journal is wrong: {error}"]
        silent = [copy for copy, offset in self._offsets.items() if offset not in told]
        if silent:
            faults.append(f"not in the journal: {len(silent)} of {len(self._offsets)}")
        ended = {offset for offset, events in told.items() if events[-1] in OUT}
        endless = [copy for copy in self._left if self._offsets[copy] not in ended]
        if endless:
            faults.append(f"without an end in the journal: {len(endless)} of {len(self._left)}")
        return faults

    def _lasts(self, copy: Copy) -> bool:
        return self._expires_ms[copy] > self._now_ms

    async def _check_file(self, store: Store) -> list[str]:
        faults: list[str] = []
        report = await store.database.run(
            lambda conn: conn.execute("PRAGMA integrity_check").fetchall()
        )
        if report != [("ok",)]:
            faults.append(f"integrity_check: {report[:3]}")
        figures = store.statistics()
        if figures.checkpoint_repaired_total or figures.zone_repaired_total:
            faults.append("the file disagreed with itself")
        if figures.next_offset <= self._highest_offset:
            faults.append(f"offset {figures.next_offset} comes a second time")
        stored = dict(
            await store.database.run(lambda c: c.execute("SELECT * FROM meta").fetchall())
        )
        for key, value in self._notes.items():
            if key not in self._unsure and stored.get(key) != value:
                faults.append(f"note of {key} is {stored.get(key)}, not {value}")
        return faults
