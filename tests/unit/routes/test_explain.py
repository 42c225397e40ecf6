"""Verdicts: why a message goes where it goes."""

import pytest

from edgehub.routes.explain import RouteOutcome, explain_routing
from tests.support.routes import a_message, a_table

MESSAGE = a_message(
    properties={"kind": "bulk", "level": "7", "blank": None},
    json_body={"temp": 21.5, "geo": {}, "ok": False},
)


def verdict(condition: str, message=MESSAGE):
    """Return the verdict of a route with this condition."""
    table = a_table({"r": f"FROM /* WHERE {condition} INTO $upstream"})
    (only,) = explain_routing(table, message)
    assert (only.outcome is RouteOutcome.ROUTED) == bool(table.evaluate(message))
    return only


def test_each_route_gets_a_verdict_in_the_manifest_s_order():
    """Winners, beaten ones, other sources and conditions that do not hold."""
    table = a_table(
        {
            "rest": "FROM /messages/* INTO $upstream",
            "cam": "FROM /messages/modules/cam/* INTO $upstream",
            "bulk": {
                "route": "FROM /messages/* WHERE kind = 'bulk' INTO $upstream",
                "priority": 7,
                "timeToLiveSecs": 900,
            },
            "alarm": {"route": "FROM /* WHERE kind = 'alarm' INTO $upstream", "priority": 0},
        }
    )
    rest, cam, bulk, alarm = explain_routing(table, MESSAGE)
    assert (rest.outcome, rest.winner) == (RouteOutcome.BEATEN, "bulk")
    assert "`bulk`" in rest.reason
    assert cam.outcome is RouteOutcome.SOURCE
    assert "/messages/modules/cam/" in cam.reason
    assert (bulk.outcome, bulk.priority, bulk.ttl_s) == (RouteOutcome.ROUTED, 7, 900)
    assert (alarm.outcome, alarm.line, alarm.column) == (RouteOutcome.FALSE, 1, 15)
    assert alarm.ttl_s == 7_200


@pytest.mark.parametrize(
    ("best", "why"),
    [
        ({"priority": 2, "timeToLiveSecs": 60}, "has a better priority"),
        ({"priority": 5, "timeToLiveSecs": 90}, "has a longer time to live, at the same priority"),
        (
            {"priority": 5, "timeToLiveSecs": 60},
            "comes first by its name, at the same priority and time to live",
        ),
    ],
)
def test_a_beaten_route_says_in_what_the_winner_is_better(best, why):
    """Where nothing but the name decides, that is said, not that it is better."""
    route = "FROM /* INTO $upstream"
    beaten = {"route": route, "priority": 5, "timeToLiveSecs": 60}
    _, verdict = explain_routing(a_table({"a": {"route": route, **best}, "b": beaten}), MESSAGE)
    assert verdict.reason == f"it matches, but `a` sends to upstream as well and {why}"


@pytest.mark.parametrize(
    ("condition", "outcome", "reason", "column"),
    [
        ("kind = 'alarm'", "false", "`kind = 'alarm'` is false: kind is \"bulk\"", 15),
        (
            "kind = 'bulk' AND a = 'x'",
            "undefined",
            "`a = 'x'` is undefined: the message has no property a",
            33,
        ),
        ("a = 'x' AND kind = 'y'", "false", "`kind = 'y'` is false: kind is \"bulk\"", 27),
        (
            "(a = 'x' OR kind = 'y') AND true",
            "undefined",
            "`a = 'x'` is undefined: the message has no property a",
            16,
        ),
        (
            "kind = 'x' OR kind = 'y'",
            "false",
            "`kind = 'x' OR kind = 'y'` is false: kind is \"bulk\"",
            15,
        ),
        ("NOT (kind = 'bulk')", "false", "`NOT (kind = 'bulk')` is false: kind is \"bulk\"", 15),
        ("$body.temp > 30", "false", "`$body.temp > 30` is false: $body.temp is 21.5", 15),
        (
            "$body.geo = 1",
            "undefined",
            "`$body.geo = 1` is undefined: $body.geo is undefined, since it is an object or array",
            15,
        ),
        (
            "is_defined(blank) AND blank = ''",
            "undefined",
            "`blank = ''` is undefined: blank is null",
            37,
        ),
        ("kind", "undefined", '`kind` is a text, not a bool: kind is "bulk"', 15),
        ("null", "false", "`null` is false", 15),
        ("true", "routed", "the condition is true", None),
    ],
)
def test_the_deciding_part_is_named(condition, outcome, reason, column):
    """The smallest part that kept the condition from being true, and the values in it."""
    found = verdict(condition)
    assert found.outcome == outcome
    assert found.reason == reason
    assert found.column == column


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (a_message(), "content type is not application/json"),
        (a_message(body=b"{}", encoding="latin-1"), "content encoding is none of"),
        (a_message(body=b"[]"), "no JSON object"),
    ],
)
def test_undefined_body_values_say_what_is_wrong_with_the_body(message, words):
    """Content type, encoding, or the body itself."""
    assert words in verdict("$body.temp = 1", message).reason


def test_long_values_are_cut():
    """A property as long as a topic allows does not flood the screen."""
    message = a_message(properties={"kind": "x" * 1_000})
    assert len(verdict("kind = 'a'", message).reason) < 200
