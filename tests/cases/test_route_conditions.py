"""Every condition of `route_conditions.json`, through the parser and table that the daemon uses."""

from edgehub.errors import ManifestError, RouteCompileError
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.message_form import read_message
from edgehub.routes.query.parser import parse_condition
from edgehub.routes.table import RouteTable
from tests.support.routes import a_manifest

CASES = "route_conditions.json"


def test_condition_decides_as_expected(case):
    """The route takes the message, leaves it, or is refused before any message."""
    manifest = a_manifest({"r": f"FROM /messages/* WHERE {case['condition']} INTO $upstream"})
    try:
        table = RouteTable.compile(parse_manifest(manifest, file="case"), endpoints=())
    except ManifestError:
        assert case["expect"] == "compile_error", case["why"]
        return
    outcome = bool(table.evaluate(read_message(case["message"])))
    assert outcome == case["expect"], case["why"]


def test_condition_alone_compiles_as_in_a_route(case):
    """A condition on its own is accepted exactly where it is accepted behind WHERE."""
    try:
        parse_condition(case["condition"])
    except RouteCompileError:
        assert case["expect"] == "compile_error", case["why"]
        return
    assert case["expect"] != "compile_error", case["why"]
