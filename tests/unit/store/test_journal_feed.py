"""The journal's position, when the one who stores it is cut off."""

import asyncio
from types import SimpleNamespace

import pytest

from edgehub.store.journal_feed import JournalFeed


async def test_a_position_is_known_to_who_asks_when_its_commit_ends() -> None:
    """The next one would else go back to an older position, and cut off lines without blobs."""
    committing = asyncio.get_running_loop().create_future()
    stored = []
    events = SimpleNamespace(
        forget=lambda *_: None, forgotten=lambda *position: stored.append(position)
    )
    writer = SimpleNamespace(transact=lambda _: committing)
    feed = JournalFeed(events, writer, None, store_id="a")
    cut_off = asyncio.create_task(feed.forget(7, b"state", 1))
    await asyncio.sleep(0)
    cut_off.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut_off
    committing.set_result(7)
    await feed.settled()
    assert stored == [(7, b"state", 1)]
