"""Counts of closes by the peer: they outlast a restart, and they are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.store.suspects import SUSPECTS_MAX
from tests.support.stores import crash_copy, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


async def test_counts_survive_a_crash(tmp_path: Path) -> None:
    """What was noted is there after the next commit; what was forgotten is not."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(3)
        suspects = hub.store.suspects
        assert suspects.get(2) == (0, 0, False)
        suspects.note(1, (1, 0, False))
        suspects.note(2, (2, 1, True))
        suspects.note(2, (3, 2, True))
        suspects.note(3, (1, 1, False))
        suspects.forget(1)
        await hub.store.writer.flush()
        copy = crash_copy(hub.path, tmp_path / "crashed")
    async with running(copy) as hub:
        suspects = hub.store.suspects
        assert [suspects.get(offset) for offset in (1, 2, 3)] == [
            (0, 0, False),
            (3, 2, True),
            (1, 1, False),
        ]


async def test_the_oldest_are_forgotten_first(tmp_path: Path) -> None:
    """A peer that closes on everything fills neither memory nor the file."""
    async with running(tmp_path / "q.db") as hub:
        for offset in range(1, SUSPECTS_MAX + 51):
            hub.store.suspects.note(offset, (1, 1, False))
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM suspect") == SUSPECTS_MAX
        assert await hub.scalar("SELECT min(offset) FROM suspect") == 51
