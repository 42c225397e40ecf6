"""Rows that are taken by their offsets: they come from there alone, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.message import FailureKind
from edgehub.store import Caps, Overflow, StoreOptions
from tests.support.stores import LAB, P2, P7, a_message, a_result, bodies, read_all, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = pytest.mark.integration


async def mixed(hub: Harness, count: int = 6) -> list[int]:
    """Store rows, each second of which creates an entity; gives the offsets of those."""
    offsets = []
    for number in range(count):
        creates = number % 2 == 1
        result = a_result(creation=creates)
        offset = hub.store.appender.append(
            a_message(f"dev-{number}", b"row-%d" % number), [result], lambda *_: None, 0
        )
        offsets += [offset] * creates
    await hub.store.writer.flush()
    return offsets


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_a_taken_row_is_passed_by_until_it_is_left(tmp_path: Path, cache_bytes: int) -> None:
    """From memory or from the file; given back it is taken again, left it comes in its turn."""
    options = StoreOptions(cache_bytes_max=cache_bytes)
    async with running(tmp_path / "q.db", options=options) as hub:
        first, second, third = await mixed(hub)
        queue = hub.queue()
        turn = queue.out_of_turn
        assert (turn.creates(first), turn.creates(first - 1)) == (True, False)
        taken = await turn.take([second, third], 1 << 20)
        assert bodies(taken) == [b"row-3", b"row-5"]
        assert turn.is_in_flight(second)
        assert await turn.take([second], 1 << 20) == []
        rows = await read_all(queue)
        assert bodies(rows) == [b"row-0", b"row-1", b"row-2", b"row-4"]
        queue.give_back(taken, attempted=True)
        assert await read_all(queue) == []
        (again,) = await turn.take([second], 1 << 20)
        assert again.attempts == 1
        queue.confirm([again])
        turn.leave(second)
        turn.leave(third)
        assert bodies(await read_all(queue)) == [b"row-5"]
        await hub.store.writer.flush()
        assert await read_all(queue) == []
        assert queue.zones.depth == 5


async def test_as_many_as_fit_are_taken(tmp_path: Path) -> None:
    """One comes even if it is too large; the others may be taken later."""
    async with running(tmp_path / "q.db") as hub:
        offsets = await mixed(hub)
        turn = hub.queue().out_of_turn
        assert bodies(await turn.take(offsets, 1)) == [b"row-1"]
        assert bodies(await turn.take(offsets, 1 << 20)) == [b"row-3", b"row-5"]


async def test_what_has_left_or_is_not_stored_yet_is_not_taken(tmp_path: Path) -> None:
    """Dead, purged and moved rows are not here; uncommitted ones come after their commit."""
    async with running(tmp_path / "q.db") as hub:
        first, second, third = await mixed(hub)
        queue = hub.queue()
        turn = queue.out_of_turn
        (row,) = await turn.take([first], 1 << 20)
        queue.dead_letter(row, FailureKind.REJECTED, "no")
        assert await turn.take([first], 1 << 20) == []
        target = hub.store.queues.get(LAB, P7)
        await hub.store.purger.take_out(queue, target, from_offset=0, through=second)
        assert bodies(await target.out_of_turn.take([second], 1 << 20)) == [b"row-3"]
        await hub.store.purger.take_out(queue, None, from_offset=0, through=third)
        assert await turn.take([second, third], 1 << 20) == []
        assert await hub.store.inspection.dead_among({first, second}) == {first}
        assert await hub.store.inspection.dead_among(()) == set()


async def test_a_taken_row_survives_displacement_and_a_move_back(tmp_path: Path) -> None:
    """It is never displaced, and one that was moved away and back can be read again."""
    options = StoreOptions(caps=Caps(overflow=Overflow.DROP_OLDEST, rows=4))
    async with running(tmp_path / "q.db", options=options) as hub:
        offset = hub.store.appender.append(
            a_message(body=b"create"), [a_result(creation=True)], lambda *_: None, 0
        )
        await hub.store.writer.flush()
        queue, target = hub.queue(P2), hub.store.queues.get(LAB, P7)
        rows = await queue.out_of_turn.take([offset], 1 << 20)
        queue.give_back(rows, attempted=False)
        await hub.stored(10)
        await hub.store.purger.take_out(queue, target, from_offset=0, through=offset)
        await hub.store.purger.take_out(target, queue, from_offset=0, through=offset)
        queue.out_of_turn.leave(offset)
        assert (await read_all(queue))[0].offset == offset


async def test_with_a_commit_delay_neither_creations_nor_what_waits_for_them_is_read_early(
    tmp_path: Path,
) -> None:
    """Before their commit they could not be found by their offsets."""
    options = StoreOptions(commit_delay_ms=1000)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(1)
        assert len(await read_all(hub.queue())) == 1
        hub.send(a_message(body=b"early"))
        hub.send(a_message(body=b"create"), a_result(creation=True))
        hub.send(a_message(body=b"late"))
        await hub.until(hub.queue().has_ready)
        assert bodies(await read_all(hub.queue())) == [b"early"]


@pytest.mark.parametrize("overflow", list(Overflow))
async def test_rows_that_cannot_be_refused_join_beyond_a_limit(
    tmp_path: Path, overflow: Overflow
) -> None:
    """Up to a bound; then their source is told that there is no room."""
    options = StoreOptions(caps=Caps(overflow=overflow, rows=3))
    async with running(tmp_path / "q.db", options=options) as hub:
        for number in range(3):
            hub.send(a_message(body=b"%d" % number), a_result(creation=True))
        await hub.store.writer.flush()

        def overdraw() -> int:
            count = 0
            while hub.store.appender.has_room():
                message = a_message(body=b"state")
                assert hub.store.appender.append(
                    message, [a_result()], _no_refusal, 0, overdraw=True
                )
                count += 1
            return count

        gives_way = overflow in {Overflow.BY_VALUE, Overflow.DROP_OLDEST}
        assert overdraw() == (4001 if gives_way else 1001)
        await hub.store.writer.flush()
        if gives_way:
            hub.store.appender.append(a_message(), [a_result()], _no_refusal, 0, overdraw=True)
            await hub.store.writer.flush()
            assert hub.queue().zones.depth <= 1004
        else:
            assert hub.queue().zones.depth == 1004


def _no_refusal(_token: int, refusal: object) -> None:
    assert refusal is None


async def test_rows_behind_a_nested_block_stay_in_the_transaction(tmp_path: Path) -> None:
    """As a twin that is saved inside the block that appends the message about its change."""
    async with running(tmp_path / "q.db") as hub:
        before = hub.store.statistics().commits_total
        with hub.store.writer.together():
            with hub.store.writer.together():
                hub.send_many(1000)
            hub.send_many(2000)
        await hub.until_settled(3000)
        assert hub.store.statistics().commits_total - before == 1


async def test_what_belongs_together_is_one_transaction(tmp_path: Path) -> None:
    """However many rows, with the operation that joins them, and lingering like any other."""
    async with running(tmp_path / "q.db") as hub:
        before = hub.store.statistics().commits_total
        with hub.store.writer.together() as transaction:
            hub.send_many(3000)
            done = hub.store.writer.transact(
                lambda conn: conn.execute("SELECT 7").fetchone(), commit_now=False
            )
            with hub.store.writer.together() as same:
                assert same is transaction
        await hub.until_settled(3000)
        assert await done == (7,)
        assert hub.store.statistics().commits_total - before == 1
        with hub.store.writer.together() as later:
            assert later is not transaction
