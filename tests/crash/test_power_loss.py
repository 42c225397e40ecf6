"""The power goes at any moment: what was acknowledged is on the disk, whatever else is or is not.

A shim records what a process does to its files; a model of a disk builds what a power cut may have
left at some moment; a real recovery opens it.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgehub.hub_id import load_hub_id
from tests.support.memory_folder import memory_folder
from tests.support.power_cut.cuts import images
from tests.support.power_cut.promises import Promises
from tests.support.power_cut.records import build_shim, read_log, recording
from tests.support.power_cut.traffic import Acknowledged, record_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
ROUNDS = 10 if SOAK else 1
IMAGES = 300 if SOAK else 40
STEPS = 300 if SOAK else 120
WORKLOAD_S_MAX = 600 if SOAK else 60
DAEMON_IMAGES = 90 if SOAK else 20
DAEMON_S = 3.0 if SOAK else 1.5

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60 + ROUNDS * IMAGES)]


@pytest.fixture(name="shim", scope="module")
def fixture_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the shim once."""
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(name="seed")
def fixture_seed() -> int:
    """Choose the seed of a run; EDGEHUB_SEED repeats one, though threads do not repeat exactly."""
    return int(os.environ.get("EDGEHUB_SEED", "0")) or random.SystemRandom().randrange(10**9)


def _record_store(folder: Path, shim: Path, seed: int, *synchronous: str) -> Path:
    disk, log = folder / "disk", folder / "log"
    disk.mkdir(parents=True)
    workload = [sys.executable, "-m", "tests.support.power_cut.workload"]
    subprocess.run(
        [*workload, str(disk / "site" / "data"), str(log), str(seed), str(STEPS), *synchronous],
        check=True,
        cwd=ROOT,
        env={**os.environ, **recording(shim, disk, log)},
        stdout=subprocess.DEVNULL,
        timeout=WORKLOAD_S_MAX,
    )
    return log


def _faults(
    log: Path, promises: Promises | Acknowledged, count: int, seed: int
) -> Iterator[list[str]]:
    """Return what each image of the recorded disk does not keep of the promises."""
    with memory_folder() as folder:
        for image, news in images(read_log(log), count, random.Random(seed), folder):
            promises.play(news)
            faults = asyncio.run(promises.broken_by(image.folder))
            yield [f"{image}: {fault}" for fault in faults]
            shutil.rmtree(image.folder)


@pytest.mark.scaled
def test_the_store_keeps_its_promises_over_power_cuts(
    tmp_path: Path, shim: Path, seed: int
) -> None:
    """Rows, order, departures, dead letters: as promised, in every image of the disk."""
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        log = _record_store(folder, shim, seed + number)
        tried = list(_faults(log, Promises(), IMAGES, seed + number))
        print(f"seed {seed + number}: {len(tried)} images")
        assert not any(tried), f"EDGEHUB_SEED={seed + number}: {[*filter(None, tried)][:5]}"
        assert len(tried) > IMAGES // 2
        shutil.rmtree(folder)


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_weaker_syncs_would_be_noticed(
    tmp_path: Path, shim: Path, seed: int, synchronous: str
) -> None:
    """With fewer syncs than the store asks for, acknowledged rows are missing: the test can see."""
    log = _record_store(tmp_path, shim, seed, synchronous)
    tried = _faults(log, Promises(), 150, seed)
    assert any("lost: " in fault for faults in tried for fault in faults), f"EDGEHUB_SEED={seed}"


@pytest.mark.scaled
def test_what_a_daemon_acknowledged_survives_power_cuts(
    tmp_path: Path, shim: Path, seed: int
) -> None:
    """Each acknowledged message waits in its queues or stands in the file that it was sent to."""
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        disk, log = folder / "disk", folder / "log"
        disk.mkdir(parents=True)
        record_daemon(disk, shim, log, random.Random(seed + number), seconds=DAEMON_S)
        acknowledged = Acknowledged(load_hub_id(disk / "site" / "data", None))
        tried = list(_faults(log, acknowledged, DAEMON_IMAGES, seed + number))
        print(f"seed {seed + number}: {len(tried)} images, {acknowledged.count} messages")
        assert not any(tried), f"EDGEHUB_SEED={seed + number}: {[*filter(None, tried)][:5]}"
        assert acknowledged.count > 500
        shutil.rmtree(folder)
