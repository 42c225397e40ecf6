"""Frames whose messages are stored: on disk with the rows, and not without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.devices.affinity.coordinator import ElectedFrame
from edgehub.devices.affinity.stored_frames import REPEATED_MS, StoredFrame, StoredFrames, frame_key
from edgehub.devices.faults import MessageRefusedError
from edgehub.message import Refusal
from tests.support.stores import a_message, a_result, crash_copy, running

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.message import Message
    from tests.support.stores import Harness

pytestmark = pytest.mark.integration


def a_frame(f_cnt: int, device_id: str = "d") -> StoredFrame:
    """Make a frame of a device."""
    return StoredFrame(
        device_id=device_id,
        session="s",
        generation=2,
        f_cnt=f_cnt,
        saved_f_cnt=0,
        key=frame_key(str(f_cnt)),
    )


def frames_of(bench: Harness) -> StoredFrames:
    """Store messages in the one queue of a bench."""

    def submit(message: Message, settle, token: int) -> None:
        bench.store.appender.append(message, [a_result()], settle, token)

    return StoredFrames(bench.store, submit)


async def test_a_frame_is_on_disk_with_its_message(tmp_path: Path) -> None:
    """What a crash leaves has both; the newest of a device counts."""
    path = tmp_path / "queue.db"
    async with running(path) as bench:
        frames = frames_of(bench)
        commits = [
            frames.append(a_message(), a_frame(1)),
            frames.append(a_message(), a_frame(7, "e")),
            frames.append(a_message(), a_frame(2)),
        ]
        for commit in commits:
            assert commit is not None
            assert await commit is None
        copy = crash_copy(path, tmp_path / "crashed")
    async with running(copy) as bench:
        frames = frames_of(bench)
        assert bench.queue().zones.depth == 3
        assert await frames.load("d") == a_frame(2)
        assert await frames.load("f") is None
        assert await frames.newest() == [ElectedFrame("e", 2, 7), ElectedFrame("d", 2, 2)]


async def test_a_refused_message_leaves_no_frame(tmp_path: Path) -> None:
    """When the device sends it again, it is a new one."""
    async with running(tmp_path / "queue.db") as bench:

        def refuse(_message: Message, settle, token: int) -> None:
            settle(token, Refusal.LIMIT)

        frames = StoredFrames(bench.store, refuse)
        with pytest.raises(MessageRefusedError):
            frames.append(a_message(), a_frame(1))
        await bench.store.writer.flush()
        assert await frames.load("d") is None


async def test_a_message_that_no_route_takes_leaves_its_frame(tmp_path: Path) -> None:
    """There is nothing to wait for."""
    async with running(tmp_path / "queue.db") as bench:

        def drop(_message: Message, settle, token: int) -> None:
            settle(token, None)

        frames = StoredFrames(bench.store, drop)
        assert frames.append(a_message(), a_frame(1)) is None
        await bench.store.writer.flush()
        assert await frames.load("d") == a_frame(1)


async def test_a_frame_is_forgotten_when_it_is_old_or_its_device_begins_again(
    tmp_path: Path,
) -> None:
    """The same bytes are another frame then."""
    async with running(tmp_path / "queue.db") as bench:
        frames = frames_of(bench)
        for device_id in ("d", "e"):
            frames.append(a_message(), a_frame(1, device_id))
        await bench.store.writer.flush()
        await frames.forget("d")
        assert await frames.load("d") is None
        assert await frames.load("e") == a_frame(1, "e")
        await bench.clock.advance(REPEATED_MS / 1000 + 1)
        assert await frames.load("e") is None
