"""Two manifests compared, route by route."""

from __future__ import annotations

import pytest

from edgehub.routes.difference import compare, route_lines
from edgehub.routes.manifest import parse_manifest
from tests.support.routes import a_manifest


def _manifest(routes: dict[str, object], ttl_s: int = 100):
    store = {"timeToLiveSecs": ttl_s}
    return parse_manifest(a_manifest(routes, storeAndForwardConfiguration=store), file="m.json")


BEFORE = {
    "stays": "FROM /messages/* INTO $upstream",
    "goes": "FROM /messages/* WHERE a = '1' INTO $upstream",
    "moves": {"route": "FROM /messages/* WHERE b = '1' INTO $upstream", "priority": 2},
    "asks": "FROM /messages/* WHERE c = '1' INTO $upstream",
    "lives": {"route": "FROM /messages/* WHERE d = '1' INTO $upstream", "timeToLiveSecs": 5},
}
AFTER = {
    "stays": "FROM  /messages/*   INTO $upstream",
    "comes": "FROM /messages/* WHERE e = '1' INTO $upstream",
    "moves": {"route": "FROM /messages/* WHERE b = '1' INTO $upstream", "priority": 1},
    "asks": "FROM /messages/modules/* WHERE c = '2' INTO $upstream",
    "lives": {"route": "FROM /messages/* WHERE d = '1' INTO $upstream", "timeToLiveSecs": 50},
}


def test_each_route_is_added_removed_changed_or_as_it_was():
    """Blanks in the text are no change; every part that differs is named with both values."""
    difference = compare(_manifest(BEFORE), _manifest(AFTER))
    assert [line.name for line in difference.added] == ["comes"]
    assert [line.name for line in difference.removed] == ["goes"]
    assert [line.name for line in difference.unchanged] == ["stays"]
    changes = {route.name: route.changes for route in difference.changed}
    assert changes == {
        "moves": {"priority": (2, 1)},
        "asks": {
            "source": ("/messages/", "/messages/modules/"),
            "condition": ("c = '1'", "c = '2'"),
        },
        "lives": {"ttl_s": (5, 50)},
    }
    assert [route.takes_the_same for route in difference.changed] == [True, False, True]


@pytest.mark.parametrize(
    ("member", "parts"),
    [
        ({"Recency": {"Seconds": 5, "FallbackPriority": 7}}, {"recency_s", "recency_fallback"}),
        ({"order": "skip"}, {"order"}),
        ({"maxAttempts": 3}, {"max_attempts"}),
        ({"maxAgeSecs": 60}, {"max_age_s"}),
    ],
)
def test_how_rows_are_delivered_is_compared_too(member: dict[str, object], parts: set[str]):
    """Each member of a route counts, whatever it says."""
    before = {"route": "FROM /messages/* INTO $upstream", "priority": 2}
    difference = compare(_manifest({"r": before}), _manifest({"r": before | member}))
    (changed,) = difference.changed
    assert changed.changes.keys() == parts


def test_another_global_time_to_live_changes_the_routes_that_have_it():
    """Effective values are compared, so a route's own time to live hides the global one."""
    difference = compare(_manifest(BEFORE), _manifest(BEFORE, ttl_s=-1))
    assert {route.name: route.changes["ttl_s"] for route in difference.changed} == {
        "stays": (100, None),
        "goes": (100, None),
        "moves": (100, None),
        "asks": (100, None),
    }


def test_route_lines_have_effective_values():
    """Priority, endpoint and time to live as they hold."""
    lines = {line.name: line for line in route_lines(_manifest(BEFORE))}
    assert (lines["moves"].priority, lines["moves"].ttl_ms) == (2, 100_000)
    assert (lines["lives"].endpoint_id, lines["lives"].ttl_ms) == ("upstream", 5_000)
