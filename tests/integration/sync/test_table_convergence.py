"""Whatever happens between hubs and a real Redis: all of them end at what the storage says.

Each seed is one history of writes by three hubs, with notices lost, doubled, held and shuffled,
connections cut, hubs killed, and a server that restarts with, without and with older data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.redis import RedisServer
from tests.support.table_faults import CONVERGE_S, History

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.mark.parametrize("seed", [2, 3, 4])
async def test_hubs_converge(seed: int, tmp_path: Path) -> None:
    """All hubs equal the storage within 5 s of the last fault, with nothing left running."""
    await _converge(tmp_path, seed, 120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
async def test_hubs_converge_for_long(seed: int, tmp_path: Path) -> None:
    """The same over longer histories."""
    await _converge(tmp_path, seed, 500)


async def _converge(folder: Path, seed: int, steps: int) -> None:
    with RedisServer(folder, persistent=True) as server:
        history = History(server, seed, steps)
        took_s, wrong = await history.run()
    assert wrong == [], history.done
    assert took_s < CONVERGE_S
