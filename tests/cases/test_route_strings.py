"""Every route string of `route_strings.json`, through the parser and table that the daemon uses."""

import re

import pytest
from msgspec import structs

from edgehub.cli.route_trial import table_of
from edgehub.errors import RouteCompileError, RouteFaultKind
from edgehub.message import Message, message_source
from edgehub.routes.query.parser import parse_route
from edgehub.routes.query.syntax import Condition

CASES = "route_strings.json"

ORDER = [RouteFaultKind.SYNTAX, RouteFaultKind.SINK, RouteFaultKind.CONDITION]


def sender_source(sender: str) -> str:
    """Return the message source of a sender as the cases name it."""
    if sender == "device":
        return message_source(None, None)
    if sender == "twin change":
        return "/twinChangeNotifications/"
    found = re.fullmatch(r"module (\S+), (?:no output|output (\S+))", sender)
    assert found is not None, sender
    return message_source(found[1], found[2])


def test_route_string_parses_as_expected(case):
    """Source, condition and sink come out as expected, or the right part is refused."""
    if not case["ok"]:
        with pytest.raises(RouteCompileError) as refused:
            parse_route(case["route"])
        kinds = {fault.kind for fault in refused.value.faults}
        assert min(kinds, key=ORDER.index) == case["fails_at"], case["why"]
        return
    route = parse_route(case["route"])
    assert str(route.source) == case["source"]
    assert route.condition.text == case["condition"]
    assert str(route.sink) == case["sink"]


def test_source_takes_the_right_senders(case):
    """The table takes messages of the senders that the case says, and of no others."""
    if not case["ok"]:
        with pytest.raises(RouteCompileError):
            parse_route(case["route"])
        return
    route = parse_route(case["route"])
    always = structs.replace(route, condition=Condition(text="true", expression=None))
    table = table_of(always)
    taken = {
        sender: bool(table.evaluate(Message("d", None, sender_source(sender), {}, {}, b"")))
        for sender in case["matches"]
    }
    assert taken == case["matches"], case["why"]
