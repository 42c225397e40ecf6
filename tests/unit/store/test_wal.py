"""How long the write-ahead log may become."""

from __future__ import annotations

import pytest

from edgehub.store.wal import BYTES_MIN, threshold_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (100_000 * MIB, 16 * MIB),
        (64 * MIB, 16 * MIB),
        (8 * MIB, 2 * MIB),
        (100_000, BYTES_MIN),
        (0, BYTES_MIN),
    ],
)
def test_the_log_takes_a_quarter_of_the_space_at_most(space: int, expected: int) -> None:
    """A large disk has the full length, a small one a share, a full one the least that works."""
    assert threshold_bytes(space, 16 * MIB) == expected
