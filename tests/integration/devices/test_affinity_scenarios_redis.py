"""Every scenario of one device and several hubs again, with a real Redis as the coordinator."""

import itertools
import json
import os
from pathlib import Path

import pytest

from edgehub.lab.simulation.run import simulate
from tests.support import affinity
from tests.support.redis import RedisServer
from tests.support.redis_manual_clock import BlockingLink, TimedRedisCoordinator
from tests.unit.devices import test_affinity_scenarios

CASES = Path(os.environ.get("EDGEHUB_CASES") or Path(__file__).parents[2] / "cases" / "data")
SCENARIOS = json.loads((CASES / "affinity_scenarios.json").read_text("utf-8"))["scenarios"]
ON_REDIS_TIME = "test_a_nonce_that_was_used_is_refused_after_the_coordinator_forgot_it"
"""Redis lets a claim expire by its own clock, which no test moves; see test_coordinators.py."""

PREFIXES = (f"run-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One Redis for all."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def make_coordinator(server):
    """Have each run ask Redis, under keys of its own."""
    links = []

    def make(_clock, told):
        links.append(BlockingLink(server.port))
        return TimedRedisCoordinator(links[-1], next(PREFIXES), told)

    affinity.COORDINATORS.append(make)
    yield make
    affinity.COORDINATORS.pop()
    for link in links:
        link.close()


def own_scenarios() -> dict:
    """Collect the tests that write their scenarios themselves."""
    return {
        name: test
        for name, test in vars(test_affinity_scenarios).items()
        if name.startswith("test_") and name != ON_REDIS_TIME
    }


globals().update(own_scenarios())


@pytest.mark.parametrize("case", SCENARIOS, ids=[case["id"] for case in SCENARIOS])
def test_scenario_ends_as_expected(case, make_coordinator):
    """Results, elections, connections, notices and flags are those of the scenario."""
    case = affinity.as_conventions_say(case)
    outcome = simulate(case, make_coordinator=make_coordinator)
    assert affinity.outcome_differences(case["expected"], outcome) == [], case["title"]
