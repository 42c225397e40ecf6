"""The local topic space beside a real Mosquitto: the same scripts have the same outcome."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.local_script import Delivery, Script, random_steps
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_listener import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

SCRIPTS = 200 if os.environ.get("EDGEHUB_SOAK") else 6
STEPS = 120


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(SCRIPTS))
async def test_random_scripts(seed: int, tmp_path: Path):
    """Clients of both versions come, go, subscribe, publish and retain: each is sent the same."""
    steps = random_steps(Random(seed), STEPS)
    with Mosquitto(tmp_path, "max_inflight_messages 100", "set_tcp_nodelay true") as broker:
        expected = await Script(broker.port).run(steps)
    async with running() as bench:
        actual = await Script(bench.port).run(steps)
    for step, ours, theirs in zip(steps, actual, expected, strict=True):
        assert ours[:3] == theirs[:3], step
        assert once(ours[3]) == once(theirs[3]), step


def once(deliveries: dict[str, list[Delivery]]) -> dict[str, list[Delivery]]:
    """Leave out further copies: of overlapping filters MQTT allows one copy, or one for each."""
    return {client: list(dict.fromkeys(got)) for client, got in deliveries.items()}
