"""Every scenario of `route_sync_scenarios.json`, on tables as the daemon has them."""

import json
import os
from pathlib import Path

import pytest

from tests.support.redis import RedisServer
from tests.support.route_sync import World
from tests.support.route_sync_steps import Scenario

CASES = "route_sync_scenarios.json"
FOLDER = Path(os.environ.get("EDGEHUB_CASES") or Path(__file__).parent / "data")

# Scenarios of scale write thousands of routes one by one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run one Redis; each scenario has keys of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


async def test_scenario_ends_as_expected(case, server):
    """Ids, references, running routes, storage and answers are those of the scenario."""
    document = json.loads((FOLDER / CASES).read_text("utf-8"))
    assert await Scenario(World(document, case, server)).run() == [], case["title"]
