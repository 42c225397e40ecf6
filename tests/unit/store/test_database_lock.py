"""What the lock file of a database tells the next hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store.lock import DatabaseLock

if TYPE_CHECKING:
    from pathlib import Path


def test_the_last_word_counts(tmp_path: Path) -> None:
    """Also after a longer one: nothing of that is left behind it."""
    path = tmp_path / "queue.db"
    lock = DatabaseLock.take(path)
    lock.opened(3)
    lock.damaged("page 7 " * 50)
    lock.release()
    lock = DatabaseLock.take(path)
    assert (lock.was_closed, lock.high_water, lock.damage) == (False, 3, "page 7 " * 50)
    lock.repaired()
    lock.closed(9)
    lock.release()
    lock = DatabaseLock.take(path)
    assert (lock.was_closed, lock.high_water, lock.damage) == (True, 9, "")
    lock.release()
