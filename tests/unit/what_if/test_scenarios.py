"""Files of scenarios: their meaning, and the errors of wrong ones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from analytics.errors import InputError
from analytics.schemas import DEFAULT_PRIORITY
from analytics.what_if.scenario_file import parse_scenarios
from analytics.what_if.scenarios import RouteChange, Scenario
from analytics.what_if.windows import ALWAYS, windows


def parsed(*scenarios: object) -> list[Scenario]:
    """Parse a file of scenarios."""
    return parse_scenarios(json.dumps({"scenarios": scenarios}), "s.json")


def test_scenarios_are_written_in_the_words_of_manifests() -> None:
    """Priorities, times to live in seconds, recency, and a factor for links."""
    recency = {"Seconds": 60, "FallbackPriority": 8}
    found = parsed(
        {"name": "longer", "routes": {"raw": {"timeToLiveSecs": 2100, "priority": 2}}},
        {"name": "fresh", "routes": {"raw": {"Recency": recency}}},
        {"name": "slow", "endpoints": {"upstream": {"linkFactor": 0.5}}},
        {"name": "last", "routes": {"raw": {"priority": DEFAULT_PRIORITY}}},
        {"name": "open", "endpoints": {"upstream": {"openAt": ["06:00"], "openForSecs": 60}}},
        {"name": "always", "endpoints": {"upstream": {"openAt": [], "linkFactor": 2}}},
        {"name": "small", "limits": {"queueRowsMax": 10, "overflow": "drop_oldest"}},
    )
    six_ms = 6 * 3_600_000
    assert found == [
        Scenario(name="longer", routes={"raw": RouteChange(priority=2, ttl_ms=2_100_000)}),
        Scenario(name="fresh", routes={"raw": RouteChange(recency_ms=60_000, fallback=8)}),
        Scenario(name="slow", factors={"upstream": 0.5}),
        Scenario(name="last", routes={"raw": RouteChange(priority=DEFAULT_PRIORITY)}),
        Scenario(name="open", windows={"upstream": windows([six_ms], 60_000, 0)}),
        Scenario(name="always", windows={"upstream": ALWAYS}, factors={"upstream": 2.0}),
        Scenario(name="small", limits={"queue_rows_max": 10, "overflow": "drop_oldest"}),
    ]
    assert found[0].fragment() == {"raw": {"priority": 2, "timeToLiveSecs": 2100}}
    assert found[1].fragment() == {"raw": {"Recency": recency}}


@pytest.mark.parametrize(
    ("scenario", "wrong"),
    [
        ({"routes": {"a": {"priority": 1}}}, "scenarios[0]: has no name"),
        ({"name": "n"}, "scenarios[0]: changes nothing; name routes, endpoints or limits"),
        ({"name": "n", "routes": {"a": {}}}, "scenarios[0].routes.a: changes nothing"),
        ({"name": "n", "routes": {"a": {"ttl": 5}}}, "'ttl' is not known; known are priority"),
        (
            {"name": "n", "routes": {"a": {"priority": 10}}},
            "scenarios[0].routes.a.priority: 10: want a whole number from 0 to 9",
        ),
        ({"name": "n", "routes": {"a": {"timeToLiveSecs": 0}}}, "want a whole number from 1"),
        ({"name": "n", "routes": {"a": {"timeToLiveSecs": True}}}, "want a whole number"),
        ({"name": "n", "routes": {"a": {"Recency": {}}}}, "Recency.Seconds: None: want"),
        ({"name": "n", "routes": [1]}, "scenarios[0].routes: want an object"),
        ({"name": "n", "endpoints": {"u": {"linkFactor": 0}}}, "want linkFactor, a number"),
        ({"name": "n", "endpoints": {"u": {}}}, "changes nothing; name linkFactor or openAt"),
        (
            {"name": "n", "endpoints": {"u": {"openAt": ["6:00"]}}},
            "scenarios[0].endpoints.u.openAt: '6:00': want a time of day in UTC, such as 06:00",
        ),
        ({"name": "n", "endpoints": {"u": {"openAt": [None]}}}, "None: want a time of day in UTC"),
        ({"name": "n", "endpoints": {"u": {"openAt": "06:00"}}}, "want a list of times of day"),
        ({"name": "n", "endpoints": {"u": {"openForSecs": 5}}}, "need openAt"),
        (
            {"name": "n", "endpoints": {"u": {"openAt": [], "urgentPriority": 10}}},
            "urgentPriority: 10: want a whole number from -1 to 9",
        ),
        ({"name": "n", "limits": {"rows": 1}}, "'rows' is not known; known are rowsMax"),
        ({"name": "n", "limits": {"rowsMax": -1}}, "limits.rowsMax: -1: want a whole number"),
        ({"name": "n", "limits": {"overflow": "reject_new"}}, "'reject_new': want by_value"),
        ("junk", "scenarios[0]: want an object"),
    ],
)
def test_a_wrong_scenario_is_named(scenario: Any, wrong: str) -> None:
    """With its file, its place and what it should be."""
    with pytest.raises(InputError) as caught:
        parsed(scenario)
    assert str(caught.value).startswith("s.json: ")
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "s.json: no JSON"),
        ("[]", "s.json: want an object"),
        ('{"scenarios": []}', "want a list of 1 to 100"),
        ('{"scenario": []}', "'scenario' is not known"),
    ],
)
def test_a_wrong_file_is_refused(text: str, wrong: str) -> None:
    """Whatever stands in it."""
    with pytest.raises(InputError, match=re.escape(wrong)):
        parse_scenarios(text, "s.json")


def test_names_tell_answers_apart() -> None:
    """Two of one name would be added up."""
    scenario = {"name": "n", "routes": {"a": {"priority": 1}}}
    with pytest.raises(InputError, match="'n' is there twice"):
        parsed(scenario, scenario)
