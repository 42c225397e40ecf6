"""Every scenario of `affinity_scenarios.json`, on the objects that the daemon uses."""

from edgehub.lab.simulation.run import simulate
from tests.support.affinity import outcome_differences

CASES = "affinity_scenarios.json"


def test_scenario_ends_as_expected(case):
    """Results, elections, connections, notices and flags are those of the scenario."""
    outcome = simulate(case)
    assert outcome_differences(case["expected"], outcome) == [], case["title"]
    assert outcome["ignored"] == []
