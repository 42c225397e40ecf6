"""The table: the best route per endpoint wins, with its time to live."""

import pytest

from edgehub.message import DEFAULT_PRIORITY, Recency
from edgehub.routes.spec import RouteRules
from tests.support.routes import a_message, a_table

FROM = "FROM /messages/* INTO"


def test_each_endpoint_gets_one_copy_by_its_best_route():
    """Different endpoints one copy each; one endpoint the best priority with that route's TTL."""
    table = a_table(
        {
            "a": {"route": f"{FROM} $upstream", "priority": 3, "timeToLiveSecs": 100},
            "b": {"route": f"{FROM} $upstream", "priority": 0, "timeToLiveSecs": 50},
            "c": {"route": f"{FROM} Endpoint('lab')", "priority": 5},
        },
        endpoints=["lab"],
    )
    upstream, lab = table.evaluate(a_message())
    assert (upstream.endpoint_id, upstream.priority, upstream.ttl_ms) == ("upstream", 0, 50_000)
    assert upstream.routes == ("b", "a")
    assert (lab.endpoint_id, lab.priority, lab.ttl_ms) == ("lab", 5, 7_200_000)
    assert lab.routes == ("c",)


def test_ties_go_to_the_longest_time_to_live_then_to_the_name():
    """Equal priorities: never beats any time, equal times are settled by the route's name."""
    routes = {
        "z": {"route": f"{FROM} $upstream", "timeToLiveSecs": 9_000},
        "y": f"{FROM} $upstream",
        "x": {"route": f"{FROM} $upstream", "timeToLiveSecs": 9_000},
    }
    (result,) = a_table(routes).evaluate(a_message())
    assert result.routes == ("x", "z", "y")
    assert (result.priority, result.ttl_ms) == (DEFAULT_PRIORITY, 9_000_000)


def test_only_matching_routes_compete():
    """A better route that does not match leaves the message to the next one."""
    table = a_table(
        {
            "alarm": {
                "route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream",
                "priority": 0,
                "Recency": {"Seconds": 10, "FallbackPriority": 4},
            },
            "rest": f"{FROM} $upstream",
        }
    )
    (alarm,) = table.evaluate(a_message(properties={"kind": "alarm"}))
    (other,) = table.evaluate(a_message(properties={"kind": "bulk"}))
    assert alarm.routes == ("alarm", "rest")
    assert alarm.recency == Recency(seconds=10, fallback_priority=4)
    assert (other.routes, other.recency) == (("rest",), None)


def test_nothing_matches_nothing_results():
    """Without a matching route there is no result."""
    table = a_table({"r": "FROM /messages/* WHERE false INTO $upstream"})
    assert not table.evaluate(a_message())
    assert not a_table({}).evaluate(a_message())


def test_equal_matches_share_their_results():
    """Results are built once per set of matching routes."""
    table = a_table({"r": f"{FROM} $upstream"})
    assert table.evaluate(a_message()) is table.evaluate(a_message(properties={"a": "b"}))


def test_tables_of_many_routes_distinguish_them():
    """Conditions that are looked up at once, and those that are not, find exactly their routes."""
    routes = {f"r{n}": f"FROM /* WHERE kind = 'k{n // 2}' INTO $upstream" for n in range(100)}
    routes |= {f"s{n}": f"FROM /* WHERE 'x{n}' = $messageId INTO $upstream" for n in range(2)}
    routes |= {f"t{n}": f"FROM /* WHERE kind = 'k{n}' AND a = 'b' INTO $upstream" for n in range(9)}
    table = a_table(routes)
    message = a_message(properties={"kind": "k7", "a": "b"}, system={"messageId": "x1"})
    assert set(table.evaluate(message)[0].routes) == {"r14", "r15", "s1", "t7"}


def test_what_is_remembered_stays_bounded():
    """More sources and more sets of routes than are kept give the same answers."""
    table = a_table(
        {
            f"r{n}": f"FROM /messages/* WHERE contains(flags, '{chr(97 + n)}') INTO $upstream"
            for n in range(13)
        }
    )
    for number in range(5_000):
        flags = "".join(chr(97 + n) for n in range(13) if number >> n & 1)
        source = f"/messages/modules/m{number}/"
        results = table.evaluate(a_message(source=source, properties={"flags": flags}))
        assert sum(len(result.routes) for result in results) == number.bit_count()


def test_equal_headers_share_results_unless_a_body_decides():
    """What is kept of one message holds for the next one with its header, where no body is read."""
    table = a_table(
        {
            "a": "FROM /messages/* WHERE kind = 'alarm' OR $body.t > 5 INTO $upstream",
            "b": "FROM /messages/modules/* INTO $upstream",
        }
    )
    system = {"contentType": "application/json", "contentEncoding": "utf-8"}

    def routes(header, kind, body, tenant=""):
        message = a_message(properties={"kind": kind}, system=system, body=body)
        message.header, message.tenant = header, tenant
        return [result.routes for result in table.evaluate(message)]

    assert routes(b"alarm", "alarm", b'{"t": 1}') == [("a",)]
    assert routes(b"alarm", "not looked at", b'{"t": 1}') == [("a",)]
    assert routes(b"alarm", "alarm", b'{"t": 9}', tenant="other") == []
    assert routes(b"bulk", "bulk", b'{"t": 9}') == [("a",)]
    assert routes(b"bulk", "bulk", b'{"t": 1}') == []
    assert routes(b"", "alarm", b"") == [("a",)]
    assert routes(b"", "bulk", b"") == []


def test_what_is_kept_of_headers_ends_with_the_table_and_is_bounded():
    """A table that is derived evaluates again, and so does one that has seen too many headers."""
    table = a_table({"a": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream"})
    alarm, bulk = a_message(properties={"kind": "alarm"}), a_message()
    alarm.header = bulk.header = b"h"
    assert table.evaluate(alarm)
    assert table.evaluate(bulk)
    assert not table.derive({0: None}, table.manifest).evaluate(alarm)
    for number in range(5_000):
        alarm.header = b"%d" % number
        assert table.evaluate(alarm)
    assert not table.evaluate(bulk)


def test_conditions_cannot_bring_code_in():
    """Quotes, braces and newlines of a route text stay text."""
    evil = "x') or __import__('os').system('true') #\n{0}"
    condition = "a = '" + evil.replace("'", "\\'") + "' OR $body.__class__ = null AND false"
    table = a_table({"r": f"FROM /* WHERE {condition} INTO $upstream"})
    assert table.evaluate(a_message(properties={"a": evil}))
    assert not table.evaluate(a_message(properties={"a": "x"}))


def test_the_hub_knows_itself():
    """Messages of the hub's own device are internal."""
    table = a_table(
        {"r": "FROM /* WHERE $edgeHubOriginInterface = 'internal' INTO $upstream"}, hub_id="hub-1"
    )
    assert table.evaluate(a_message(device_id="hub-1"))
    assert not table.evaluate(a_message(device_id="d1"))


def test_delivery_rules_are_found_by_route():
    """What a route does not say is None; an unknown route is an error."""
    table = a_table(
        {
            "a": {"route": f"{FROM} $upstream", "order": "skip", "maxAttempts": 4},
            "b": {"route": f"{FROM} $upstream", "maxAgeSecs": 60},
        }
    )
    assert table.delivery_rules("a") == RouteRules(order="skip", max_attempts=4)
    assert table.delivery_rules("b") == RouteRules(max_age_s=60)
    with pytest.raises(KeyError):
        table.delivery_rules("c")
