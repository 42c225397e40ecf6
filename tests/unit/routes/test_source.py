"""Sources: normalised prefixes, MQTT filters, and what a message must look like to match."""

import pytest

from edgehub.errors import ManifestError, RouteCompileError
from edgehub.message import message_source
from edgehub.routes.explain import listens_to
from edgehub.routes.query.parser import parse_route
from tests.support.routes import a_message, a_table

SENDERS = {
    "device": message_source(None, None),
    "module m": message_source("m", None),
    "output o of m": message_source("m", "o"),
    "output p of m": message_source("m", "p"),
    "output o of mm": message_source("mm", "o"),
    "twin change": "/twinChangeNotifications/",
    "topic": "/mqtt/a/b",
}
TELEMETRY = {"device", "module m", "output o of m", "output p of m", "output o of mm"}
MODULES = TELEMETRY - {"device"}
OUTPUTS = {"output o of m", "output p of m"}


def taken_from(source: str) -> set[str]:
    """Return the senders whose messages a route with this source takes."""
    table = a_table({"r": f"FROM {source} INTO $upstream"})
    taken = {name for name, sent in SENDERS.items() if table.evaluate(a_message(source=sent))}
    spec = table.manifest.routes[0]
    assert taken == {n for n, sent in SENDERS.items() if listens_to(spec.route.source, sent)}
    return taken


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("/*", set(SENDERS)),
        ("/messages", TELEMETRY),
        ("/messages/*", TELEMETRY),
        ("/MESSAGES/*", TELEMETRY),
        ("/messages/modules", MODULES),
        ("/messages/modules/*", MODULES),
        ("/messages/modules/m", {"module m"} | OUTPUTS),
        ("/messages/modules/M/*", {"module m"} | OUTPUTS),
        ("/messages/modules/m*", {"module m"} | OUTPUTS),
        ("/messages/modules/m/outputs/*", OUTPUTS),
        ("/messages/modules/m/outputs/o", {"output o of m"}),
        ("/twinChangeNotifications/*", {"twin change"}),
        ("/messages/modules/*/outputs/o", set()),
        ("/messages/events", set()),
        ("/foo", set()),
        ("/mqtt/#", {"topic"}),
        ("/mqtt/a/+", {"topic"}),
        ("/mqtt/A/+", set()),
        ("/mqtt", {"topic"}),
    ],
)
def test_sources_take_their_senders(source, taken):
    """A prefix takes all that begins with it, ignoring case; a filter takes topics as written."""
    assert taken_from(source) == taken


@pytest.mark.parametrize(
    "source",
    [
        "/foo",
        "/messages/events",
        "/messages/modules/*/outputs/o",
        "/messages/modules/ca*",
        "/messages/modules/m/inputs/i",
        "/messages/modules/m/outputs/o/x",
        "/twinChangeNotifications/x",
    ],
)
def test_sources_that_take_nothing_or_less_than_they_seem_to_give_a_warning(source):
    """They compile, as in the original, but it is said."""
    assert parse_route(f"FROM {source} INTO $upstream").warnings


@pytest.mark.parametrize(
    "source",
    ["/*", "/messages/*", "/messages/modules/m/outputs/*", "/mqtt/a", "/twinChangeNotifications/*"],
)
def test_ordinary_sources_give_no_warning(source):
    """What matches something is not commented on."""
    assert not parse_route(f"FROM {source} INTO $upstream").warnings


@pytest.mark.parametrize(
    ("topic_filter", "topics", "others"),
    [
        ("plant/3/#", ["plant/3", "plant/3/", "plant/3/x", "plant/3/x/y"], ["plant/33", "plant"]),
        ("site/+/tele/#", ["site/d1/tele", "site/d1/tele/a/b"], ["site/d1/telemetry", "site/tele"]),
        ("plant/3", ["plant/3"], ["plant/3/", "plant", "plant/3/x", "Plant/3"]),
        ("+", ["a", ""], ["a/b", "$SYS"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/c/d"]),
        ("#", ["a", "a/b", "/a"], ["$edge/q/1", "$SYS"]),
        ("$edge/#", ["$edge/q/1", "$edge"], ["a"]),
        ("a%20b/+", ["a b/c"], ["a%20b/c"]),
    ],
)
def test_mqtt_filters_match_by_the_rules_of_mqtt(topic_filter, topics, others):
    """`#` includes the parent level; wildcards at the start skip topics that begin with `$`."""
    table = a_table({"r": f"FROM /mqtt/{topic_filter} INTO $upstream"})
    for topic in topics:
        assert table.evaluate(a_message(source=f"/mqtt/{topic}")), topic
    for topic in others:
        assert not table.evaluate(a_message(source=f"/mqtt/{topic}")), topic


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a#", "a/b+", "+a/b", "a/*", "a\0b", "##"])
def test_broken_mqtt_filters_are_refused(topic_filter):
    """A wildcard is a whole level, `#` the last one, and a star is no wildcard."""
    with pytest.raises(RouteCompileError):
        parse_route(f"FROM /mqtt/{topic_filter} INTO $upstream")


def test_overlapping_filters_are_independent():
    """A message that two filters match is evaluated by the routes of both."""
    table = a_table(
        {
            "all": "FROM /mqtt/# INTO $upstream",
            "edge": "FROM /mqtt/$edge/# INTO Endpoint('lab')",
            "red": "FROM /mqtt/a/# WHERE colour = 'red' INTO Endpoint('lab')",
        },
        endpoints=["lab"],
    )
    message = a_message(source="/mqtt/a/b", properties={"colour": "red"})
    assert {result.routes for result in table.evaluate(message)} == {("all",), ("red",)}
    assert [result.routes for result in table.evaluate(a_message(source="/mqtt/$edge/q"))] == [
        ("edge",)
    ]


def test_long_topics_are_not_remembered_and_still_match():
    """Topics that only a broker can invent do not fill the table's memory."""
    table = a_table({"r": "FROM /mqtt/# INTO $upstream"})
    assert table.evaluate(a_message(source="/mqtt/" + "a/" * 30_000))


@pytest.mark.parametrize(
    ("sink", "endpoint_id"),
    [
        ("$upstream", "upstream"),
        ("$UPSTREAM", "upstream"),
        ("BrokeredEndpoint('/modules/m/inputs/i')", "modules/m/inputs/i"),
        ('brokeredendpoint ( " modules/m/inputs/i/ " )', "modules/m/inputs/i"),
        ("BrokeredEndpoint('/Modules/m/INPUTS/i')", "modules/m/inputs/i"),
        ("Endpoint('lab-2')", "lab-2"),
        ('ENDPOINT(" lab-2 ")', "lab-2"),
        ("Endpoint('upstream')", "upstream"),
    ],
)
def test_sinks_name_endpoints(sink, endpoint_id):
    """Functions ignore case, blanks around the quoted text do not count."""
    table = a_table({"r": f"FROM /* INTO {sink}"}, endpoints=["lab-2"])
    assert table.evaluate(a_message())[0].endpoint_id == endpoint_id
    assert table.endpoints == {endpoint_id}


@pytest.mark.parametrize(
    "sink",
    [
        "$up",
        "Endpointt('lab')",
        "BrokeredEndpoint('/modules/m/inputs')",
        "BrokeredEndpoint('/modules/m/inputs/i/x')",
        "BrokeredEndpoint('/modules//inputs/i')",
        "BrokeredEndpoint('/modules/m/inputs/ ')",
        "BrokeredEndpoint('/modules/m/inputs/+')",
        "BrokeredEndpoint('/modules/#/inputs/i')",
        "BrokeredEndpoint('/modules/m/inputs/a\nb')",
        "BrokeredEndpoint('/modules/m/inputs/a\x00')",
        "BrokeredEndpoint('/modules/m/outputs/i')",
        "BrokeredEndpoint('/inputs/m/modules/i')",
        "Endpoint('')",
        "Endpoint('Lab')",
        "Endpoint('-lab')",
        f"Endpoint('{'x' * 64}')",
    ],
)
def test_sinks_that_name_nothing_are_refused(sink):
    """The fault is one of the sink, with a hint."""
    with pytest.raises(RouteCompileError) as refused:
        parse_route(f"FROM /* INTO {sink}")
    assert refused.value.faults[0].kind == "sink"
    assert refused.value.hint


def test_unknown_named_endpoints_are_reported_with_a_near_miss():
    """All of them at once, with the place of the sink in the route."""
    routes = {"a": "FROM /* INTO Endpoint('labb')", "b": "FROM /* INTO Endpoint('zzz')"}
    with pytest.raises(ManifestError) as refused:
        a_table(routes, endpoints=["lab"])
    first, second = refused.value.faults
    assert (first.route, first.line, first.column) == ("a", 1, 14)
    assert "lab" in first.hint
    assert second.route == "b"
