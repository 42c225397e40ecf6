"""Every scenario of `affinity_scenarios.json`, on the objects that the daemon uses."""

from edgehub.lab.simulation.run import simulate
from tests.support.affinity import as_conventions_say, outcome_differences

CASES = "affinity_scenarios.json"


def test_scenario_ends_as_expected(case):
    """Results, elections, connections, notices and flags are those of the scenario."""
    case = as_conventions_say(case)
    outcome = simulate(case)
    assert outcome_differences(case["expected"], outcome) == [], case["title"]
    assert outcome["ignored"] == []
