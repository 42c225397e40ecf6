"""The store on a disk of a few megabytes: a real file system that really becomes full."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from shutil import disk_usage
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from edgehub.clock import ManualClock
from edgehub.errors import StartupError, StoreError
from edgehub.message import UPSTREAM, FailureKind, Refusal
from edgehub.store import Caps, Overflow, Store, StoreOptions
from tests.support.journal import journaling
from tests.support.journal_format import check_copies, check_equation, read_folder
from tests.support.stores import P2, a_message, a_result, bodies, read_all, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]

BODY_BYTES = 2000
DISK_BYTES = 12 * 2**20
SLACK_BYTES = 256 * 1024
"""What the log may be longer, and pages emptier, than was known when the volume was looked at."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount an empty disk of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def occupy(disk: Path, *, free: int) -> None:
    """Have a foreign file leave only so much space."""
    with (disk / "foreign").open("ab", buffering=0) as file:
        file.write(bytes(max(0, disk_usage(disk).free - free) // 4096 * 4096))


async def looked(hub: Harness) -> None:
    """Wait until the volume has been looked at again."""
    await hub.clock.advance(5)
    await hub.store.database.run(lambda _: None)


async def stored_large(hub: Harness, count: int) -> None:
    """Hand in messages that have a page each, and wait until all have their answer."""
    for _ in range(count):
        hub.send(a_message(body=bytes(BODY_BYTES)), a_result(P2))
    await hub.store.writer.flush()


async def test_the_log_alone_never_fills_a_small_disk(disk: Path) -> None:
    """Twice the disk's size passes through, nothing waits, and no commit ever fails."""
    async with running(disk / "q.db") as hub:
        for number in range(120):
            for _ in range(100):
                hub.send(a_message(body=bytes(BODY_BYTES)), a_result(P2))
            await hub.store.writer.flush()
            queue = hub.queue()
            while rows := await queue.read_batch(100, 1 << 20):
                queue.confirm(rows)
            await hub.store.writer.flush()
            statistics = hub.store.statistics()
            assert statistics.commit_failures_total == 0, number
        assert len(hub.accepted) == 12_000


async def test_a_full_disk_is_left_by_itself_once_there_is_space(disk: Path) -> None:
    """S-11: a foreign file takes all space; nobody is told a lie, and the hub goes on after it."""
    async with running(disk / "q.db") as hub:
        await hub.stored(50, a_result(P2))
        foreign = disk / "foreign"
        foreign.write_bytes(bytes(disk_usage(disk).free // 4096 * 4096))
        for number in range(2000):
            hub.send(a_message(body=b"%d" % number + bytes(BODY_BYTES)), a_result(P2))
        await hub.until(lambda: hub.store.statistics().failing is not None, tick_s=0.1)
        acknowledged = len(hub.accepted)
        assert acknowledged < 2050
        foreign.unlink()
        await hub.until(lambda: len(hub.accepted) == 2050, tick_s=0.5)
        assert hub.store.statistics().failing is None
        queue = hub.queue()
        assert await hub.count(queue) == (2050, queue.statistics().bytes)
        rows = await queue.read_batch(3000, 1 << 30)
        numbers = [int(body.split(b"\0")[0]) for body in bodies(rows)[50:]]
        assert numbers == list(range(2000))


async def test_a_start_on_a_full_disk_drains_and_deletes_nothing(disk: Path) -> None:
    """S-11: with no byte free the hub starts and sends; what was sent goes once there is room."""
    path = disk / "q.db"
    async with running(path) as hub:
        await hub.stored(400, a_result(P2))
    foreign = disk / "foreign"
    for _ in range(2):
        with suppress(OSError), foreign.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert disk_usage(disk).free == 0
        async with running(path) as hub:
            rows = await read_all(hub.queue())
            assert len(rows) == 400
            hub.queue().give_back(rows, attempted=False)
            hub.send(a_message(), a_result(P2))
            await hub.until(lambda: hub.store.statistics().failing is not None, tick_s=0.1)
            assert hub.settled == []
    async with running(path) as hub:
        rows = await read_all(hub.queue())
        hub.queue().confirm(rows[:100])
        await hub.until(lambda: hub.store.statistics().failing is not None, tick_s=0.1)
        assert await read_all(hub.queue()) == []
        foreign.unlink()
        await hub.until(lambda: hub.queue().statistics().depth == 300, tick_s=0.5)
    async with running(path) as hub:
        assert bodies(await read_all(hub.queue())) == [b"body-%d" % n for n in range(100, 400)]


async def test_a_damaged_file_waits_for_room_to_be_saved(disk: Path) -> None:
    """The start fails with what to do and leaves the file alone; with room it goes on."""
    path = disk / "q.db"
    async with running(path) as hub:
        for number in range(1500):
            hub.send(a_message(body=b"%d" % number + bytes(BODY_BYTES)), a_result(P2))
        await hub.store.writer.flush()
    os.truncate(path, path.stat().st_size * 3 // 4)
    foreign = disk / "foreign"
    foreign.write_bytes(bytes(disk_usage(disk).free - 2**20))
    for _ in range(2):
        with pytest.raises(StartupError, match="free as much disk space as the file takes"):
            await Store.open(path, clock=ManualClock(), options=StoreOptions())
    assert not path.with_name("q.db.salvage").exists()
    foreign.unlink()
    async with running(path) as hub:
        assert hub.store.damage is not None
        assert hub.store.statistics().rows > 1000


async def test_a_read_only_disk_is_said_at_the_start(disk: Path) -> None:
    """A start that may not write says so, with exit code 3; one that may again finds everything."""
    path = disk / "q.db"

    def remount(mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)

    async with running(path) as hub:
        await hub.stored(5, a_result(P2))
    remount("ro")
    with pytest.raises(StartupError, match="cannot be opened: Read-only file system"):
        await Store.open(path, clock=ManualClock(), options=StoreOptions())
    remount("rw")
    async with running(path) as hub:
        assert len(await read_all(hub.queue())) == 5


@pytest.mark.parametrize("percent", [20, 75])
async def test_a_share_of_the_volume_counts_what_is_stored(disk: Path, percent: int) -> None:
    """S-10: a store that fits stays, though little is free; the share is of the whole volume."""
    options = StoreOptions(caps=Caps(bytes_percent=percent, overflow=Overflow.REJECT_NEW))
    cap = disk_usage(disk).total * percent // 100
    stored_bytes = min(cap * 9 // 10, DISK_BYTES // 3)
    async with running(disk / "q.db", options=options) as hub:
        await hub.store.writer.flush()
        while hub.store.statistics().bytes < stored_bytes:
            await stored_large(hub, 50)
        stored = hub.queue().statistics().depth
        assert len(hub.accepted) == stored
    occupy(disk, free=2 * 2**20)
    async with running(disk / "q.db", options=options) as hub:
        # Until the volume has been looked at once, nothing is known of it.
        await hub.store.writer.flush()
        assert hub.queue().statistics().depth == stored
        await hub.stored(20, a_result(P2))
        assert len(hub.accepted) == 20
        assert hub.store.statistics().limits == []
        if percent == 20:
            while len(hub.accepted) == len(hub.settled):
                await stored_large(hub, 50)
                assert hub.store.statistics().bytes <= cap
            (reached,) = hub.store.statistics().limits
            assert (reached.cap, reached.queue) == ("hub bytes", None)
            assert cap - BODY_BYTES - 200 < hub.store.statistics().bytes <= cap


FLOORS = [
    (Caps(free_bytes_min=1 << 40), DISK_BYTES // 10),  # of a small volume a tenth
    (Caps(free_bytes_min=2**20), 2**20),
    (Caps(free_percent=50), DISK_BYTES // 2),
    (Caps(free_percent=25, free_bytes_min=2**20), DISK_BYTES // 4),
    (Caps(free_percent=1, free_bytes_min=2**20), 2**20),
]


@pytest.mark.parametrize(("caps", "floor"), FLOORS)
async def test_rows_leave_so_much_of_the_disk_free(disk: Path, caps: Caps, floor: int) -> None:
    """In bytes, as a share, or the higher of both: rows take what is above it, and no more."""
    options = StoreOptions(caps=replace(caps, overflow=Overflow.REJECT_NEW))
    async with running(disk / "q.db", options=options) as hub:
        await hub.store.writer.flush()
        for _ in range(40):
            refused = len(hub.settled) - len(hub.accepted)
            while len(hub.settled) - len(hub.accepted) == refused:
                await stored_large(hub, 20)
                assert disk_usage(disk).free > floor - SLACK_BYTES
            await looked(hub)
        # Pages that are in the log alone will make the file longer.
        pages = await hub.scalar("PRAGMA page_count")
        to_come = pages * 4096 - (disk / "q.db").stat().st_size
        assert disk_usage(disk).free - to_come < floor + SLACK_BYTES
        statistics = hub.store.statistics()
        assert statistics.commit_failures_total == 0
        assert [reached.cap for reached in statistics.limits] == ["free disk space"]


async def test_space_that_comes_and_goes_counts_at_once(disk: Path) -> None:
    """What others write is seen within 5 s, and so is what they delete."""
    caps = Caps(free_bytes_min=2**20, overflow=Overflow.REJECT_NEW)
    async with running(disk / "q.db", options=StoreOptions(caps=caps)) as hub:
        await stored_large(hub, 100)
        occupy(disk, free=2**20)
        await looked(hub)
        await stored_large(hub, 100)
        assert len(hub.accepted) == 100
        (disk / "foreign").unlink()
        await looked(hub)
        await stored_large(hub, 100)
        assert len(hub.accepted) == 200


async def test_space_inside_the_file_is_used_first(disk: Path) -> None:
    """What was delivered leaves room in the file, and rows that fit there need no disk."""
    caps = Caps(free_bytes_min=2**20, overflow=Overflow.REJECT_NEW)
    async with running(disk / "q.db", options=StoreOptions(caps=caps)) as hub:
        await stored_large(hub, 1500)
        hub.queue().confirm(await read_all(hub.queue()))
        await hub.store.writer.flush()
        pages = await hub.scalar("PRAGMA page_count")
        occupy(disk, free=2**20)
        await looked(hub)
        await stored_large(hub, 200)
        assert len(hub.accepted) == 1700
        assert await hub.scalar("PRAGMA page_count") == pages


async def test_a_full_disk_is_left_where_the_file_has_room(disk: Path) -> None:
    """The log has taken the last of the space: moved into the file, it has room again."""
    async with running(disk / "q.db") as hub:
        await stored_large(hub, 1500)
        hub.queue().confirm(await read_all(hub.queue()))
    async with running(disk / "q.db") as hub:
        for _ in range(15):
            await hub.stored(1)
        occupy(disk, free=0)
        for number in range(16, 101):
            hub.send()
            await hub.until(lambda n=number: len(hub.accepted) == n, tick_s=0.1, within_s=30)
        assert hub.store.statistics().commit_failures_total > 0
        assert hub.store.statistics().failing is None
        assert disk_usage(disk).free == 0


async def test_a_floor_of_free_space_keeps_commits_from_failing(disk: Path) -> None:
    """Three times the disk arrives, nothing leaves: the oldest give way, no commit fails."""
    caps = Caps(free_bytes_min=1 << 40, overflow=Overflow.DROP_OLDEST)
    async with running(disk / "q.db", options=StoreOptions(caps=caps)) as hub:
        for _ in range(180):
            for _ in range(100):
                hub.send(a_message(body=bytes(BODY_BYTES)), a_result(P2))
            await hub.store.writer.flush()
        statistics = hub.store.statistics()
        assert statistics.commit_failures_total == 0
        assert len(hub.accepted) == 18_000
        figures = hub.queue().statistics()
        assert figures.depth + figures.dropped_total == 18_000
        assert figures.depth > 1000
        (reached,) = statistics.limits
        assert reached.cap == "free disk space"


async def test_a_journal_that_finds_no_space_loses_no_event(disk: Path) -> None:
    """On a full disk events wait in the file, in its bounds; with space all of it has its lines."""
    options = StoreOptions(journal=True, caps=Caps(bytes=2**20))
    async with journaling(disk / "q.db", options=options) as it:
        hub, queue = it.hub, it.hub.store.queues.get(UPSTREAM, P2)
        foreign = disk / "foreign"
        for _ in range(40):
            await hub.stored(50, a_result(P2))
            queue.confirm(await queue.read_batch(40, 1 << 20))
            await hub.store.writer.flush()
        foreign.write_bytes(bytes(disk_usage(disk).free // 4096 * 4096))
        waiting = it.feed.bytes_waiting
        with pytest.raises((OSError, StoreError)):
            await it.journal.write_out()
        assert it.feed.bytes_waiting == waiting
        sent = len(hub.settled)
        while hub.store.statistics().failing is None:
            # The log may have room of its own for some of them.
            hub.send_many(1000, a_result(P2))
            sent += 1000
            await hub.until(
                lambda end=sent: hub.store.statistics().failing or len(hub.settled) == end
            )
        foreign.unlink()
        await hub.until(lambda: hub.store.statistics().failing is None, tick_s=0.5)
        await hub.until(lambda: len(hub.settled) == sent, tick_s=0.5)
        await it.end()
        left = it.depths()
        await it.journal.write_out(close=True)
        assert it.feed.bytes_waiting == 0
    lines = read_folder(it.folder)
    check_copies(lines)
    assert {name: figures for (_, name), figures in check_equation(lines).items()} == left


@pytest.fixture
def disk_image(tmp_path: Path) -> Iterator[Path]:
    """Make and mount a file system of 24 MiB in a file; gives its folder."""
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        pytest.skip("a container may have no loop devices")
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(24 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], check=True)
    _mount(folder)
    yield folder
    subprocess.run(["umount", folder], check=True)


def _mount(folder: Path) -> None:
    subprocess.run(["mount", "-o", "loop", folder.parent / "image", folder], check=True)


def _turn_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,abort", folder], check=True)


def _mount_again(folder: Path) -> None:
    subprocess.run(["umount", folder], check=True)
    _mount(folder)


async def test_a_disk_that_turns_read_only_loses_nothing(disk_image: Path) -> None:
    """As after an error of the disk: rows are still sent, once; nobody is told that all is well."""
    path = disk_image / "q.db"
    async with running(path) as hub:
        await hub.stored(200, a_result(P2))
        _turn_read_only(disk_image)
        queue = hub.queue()
        sent = await queue.read_batch(50, 1 << 20)
        queue.confirm(sent)
        hub.send_many(20, a_result(P2))
        await hub.until(lambda: hub.store.statistics().failing is not None, tick_s=0.1)
        assert len(hub.settled) == 200
        failing = hub.store.statistics().failing
        assert failing is not None
        assert failing.startswith(("SQLITE_READONLY", "SQLITE_IOERR"))
        rest = await read_all(queue)
        assert [row.offset for row in (*sent, *rest)] == list(range(1, 221))
        queue.give_back(rest, attempted=False)
    assert all(refusal is Refusal.CLOSED for _, refusal in hub.settled[200:])
    _mount_again(disk_image)
    async with running(path) as hub:
        assert hub.store.damage is None
        assert bodies(await read_all(hub.queue())) == [b"body-%d" % n for n in range(200)]
        await hub.stored(1, a_result(P2))


async def give_up(hub: Harness, count: int) -> None:
    """Hand in so many large messages, and make dead letters of those before meanwhile."""
    for _ in range(0, count, 50):
        for row in await read_all(hub.queue()) if hub.sent else ():
            hub.queue().dead_letter(row, FailureKind.REJECTED, "no")
        await stored_large(hub, 50)


async def test_dead_letters_take_a_share_of_a_small_disk(disk: Path) -> None:
    """S-11: a peer that refuses all costs a tenth of the volume; messages are still taken."""
    async with running(disk / "q.db") as hub:
        await give_up(hub, 6000)
        statistics = hub.store.statistics()
        assert 0 < statistics.dead_letter_bytes <= DISK_BYTES // 10
        assert statistics.commit_failures_total == 0
        assert len(hub.accepted) == 6000


async def test_the_floor_holds_whatever_rows_become(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-11: rows that stay as dead letters give back no room, so the store never fills the disk."""
    monkeypatch.setattr("edgehub.store.dead_letters.VOLUME_SHARE", 1)
    options = StoreOptions(caps=Caps(free_bytes_min=DISK_BYTES // 10))
    async with running(disk / "q.db", options=options) as hub:
        await give_up(hub, 6000)
        assert hub.store.statistics().commit_failures_total == 0
        assert disk_usage(disk).free > DISK_BYTES // 10 - SLACK_BYTES
        assert {refusal for _, refusal in hub.settled} == {None, Refusal.LIMIT}
        letters = await hub.store.inspection.dead_letters(limit=10_000)
        await hub.store.requeuer.purge([letter.id for letter in letters])
        await looked(hub)
        await stored_large(hub, 10)
        assert [refusal for _, refusal in hub.settled[-10:]] == [None] * 10
