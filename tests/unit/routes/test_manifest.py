"""Manifests: schema, ranges, whole or nothing, and what makes two of them the same."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.errors import ConfigError, ManifestError
from edgehub.message import DEFAULT_PRIORITY, Recency
from edgehub.routes.manifest import DEFAULT_MANIFEST, parse_manifest
from edgehub.routes.spec import RouteRules
from tests.support.routes import a_manifest

UP = "FROM /messages/* INTO $upstream"


def refused(document) -> ManifestError:
    """Read a manifest that must be refused."""
    with pytest.raises(ManifestError) as error:
        parse_manifest(document, file="m.json")
    assert isinstance(error.value, ConfigError)
    return error.value


def paths(document) -> list[str]:
    """Return the paths of all faults."""
    return [fault.path for fault in refused(document).faults]


def with_route(**members):
    """Return a manifest of one route in object form."""
    return a_manifest({"r1": {"route": UP, **members}})


def test_the_seed_form_is_read():
    """Both forms of a route, priorities and times to live."""
    manifest = parse_manifest(
        a_manifest(
            {
                "alarm": {"route": UP, "priority": 0, "timeToLiveSecs": 86400},
                "zero": {"route": UP, "priority": 9, "timeToLiveSecs": 0},
                "explicit": {"route": UP, "priority": 2_000_000_000},
                "rest": UP,
            }
        ),
        file="m.json",
    )
    read = {spec.name: (spec.priority, spec.ttl_ms) for spec in manifest.routes}
    assert read == {
        "alarm": (0, 86_400_000),
        "zero": (9, None),
        "explicit": (DEFAULT_PRIORITY, None),
        "rest": (DEFAULT_PRIORITY, None),
    }
    assert manifest.global_ttl_ms == 7_200_000
    assert not manifest.warnings


@pytest.mark.parametrize(
    "wrap",
    [
        lambda desired: desired,
        lambda desired: {"$edgeHub": {"properties.desired": desired}},
        lambda desired: {
            "modulesContent": {"$edgeAgent": {}, "$edgeHub": {"properties.desired": desired}}
        },
    ],
)
def test_wrappings_of_a_deployment_are_taken_off(wrap):
    """Bare desired properties, the hub's part, and a whole deployment mean the same."""
    document = wrap({**a_manifest({"r": UP}), "$version": 4, "$metadata": {}})
    for form in (document, json.dumps(document)):
        manifest = parse_manifest(form, file="m.json")
        assert [spec.name for spec in manifest.routes] == ["r"]


@pytest.mark.parametrize("priority", [10, -1, 1.5, "1", True, None, 2_000_000_001, [], 10**30])
def test_priorities_out_of_range_are_refused_with_their_path(priority):
    """Only 0 to 9, the default's own number, and absence are priorities."""
    error = refused(with_route(priority=priority))
    assert [fault.path for fault in error.faults] == ["routes.r1.priority"]
    assert error.faults[0].route == "r1"
    assert "routes.r1.priority" in str(error)


def test_values_that_json_cannot_hold_are_refused_by_their_kind():
    """A manifest that another reader made may hold anything."""
    assert "object" in refused(with_route(priority=object())).reason


@pytest.mark.parametrize("seconds", [-1, 1.5, "60", True, None, 2**32])
def test_times_to_live_out_of_range_are_refused(seconds):
    """A route's time to live is an unsigned 32-bit number of seconds."""
    assert paths(with_route(timeToLiveSecs=seconds)) == ["routes.r1.timeToLiveSecs"]


@pytest.mark.parametrize(("seconds", "ttl_ms"), [(-1, None), (-5, None), (1, 1_000)])
def test_the_global_time_to_live_may_never_end(seconds, ttl_ms):
    """Below zero messages never expire."""
    document = a_manifest({"r": UP}, storeAndForwardConfiguration={"timeToLiveSecs": seconds})
    assert parse_manifest(document, file="m").global_ttl_ms == ttl_ms


def test_a_global_time_to_live_of_zero_is_an_error_with_a_hint():
    """It would expire everything; -1 is what is mostly meant."""
    error = refused(a_manifest({"r": UP}, storeAndForwardConfiguration={"timeToLiveSecs": 0}))
    assert error.key.endswith("storeAndForwardConfiguration.timeToLiveSecs")
    assert "-1" in error.hint


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ([], [""]),
        ("nonsense", [""]),
        ({}, ["schemaVersion", "storeAndForwardConfiguration", "routes"]),
        (a_manifest({"r": UP}, schemaVersion=1.1), ["schemaVersion"]),
        (a_manifest({"r": UP}, schemaVersion="1"), ["schemaVersion"]),
        (a_manifest({"r": UP}, schemaVersion="1.4"), ["schemaVersion"]),
        (a_manifest({"r": UP}, schemaVersion="2.0"), ["schemaVersion"]),
        (a_manifest([UP]), ["routes"]),
        (a_manifest({"r": 5}), ["routes.r"]),
        (a_manifest({"r": None}), ["routes.r"]),
        (a_manifest({"r": "  "}), ["routes.r"]),
        (a_manifest({" ": UP}), ["routes. "]),
        (a_manifest({"r": {}}), ["routes.r.route"]),
        (a_manifest({"r": {"route": None}}), ["routes.r.route"]),
        (a_manifest({"r": {"route": UP, "prioritty": 1}}), ["routes.r.prioritty"]),
        (a_manifest({"r": {"route": UP, "order": "any"}}), ["routes.r.order"]),
        (a_manifest({"r": {"route": UP, "maxAttempts": -1}}), ["routes.r.maxAttempts"]),
        (a_manifest({"r": {"route": UP, "maxAgeSecs": "1"}}), ["routes.r.maxAgeSecs"]),
        (a_manifest({"r": UP}, storeAndForwrdConfiguration={}), ["storeAndForwrdConfiguration"]),
        (a_manifest({"r": UP}, endpoints={"http": {"timeToLiveSecs": 5}}), ["endpoints"]),
        (
            a_manifest({"r": UP}, storeAndForwardConfiguration=7200),
            ["storeAndForwardConfiguration"],
        ),
        (
            a_manifest({"r": UP}, storeAndForwardConfiguration={"timeToLive": 7200}),
            [
                "storeAndForwardConfiguration.timeToLive",
                "storeAndForwardConfiguration.timeToLiveSecs",
            ],
        ),
    ],
)
def test_what_breaks_the_schema_is_refused_with_its_path(document, where):
    """Unknown, missing and misplaced members are faults."""
    assert paths(document) == where


def test_misspelt_members_get_a_near_miss():
    """The hint names the member that was meant."""
    error = refused(a_manifest({"r": UP}, storeAndForwrdConfiguration={"timeToLiveSecs": 1}))
    assert "storeAndForwardConfiguration" in error.hint
    assert "timeToLiveSecs" in refused(with_route(TimeToLiveSec=1)).hint


def test_all_faults_are_reported_at_once():
    """Schema faults and faults of route texts, each with route, line and column."""
    error = refused(
        a_manifest(
            {
                "a": "FROM /messages/* WHERE level > 5 INTO $upstreams",
                "b": {"route": "FROM /messages/*\nWHERE x == 'y' INTO $upstream", "priority": 11},
                "good": UP,
            }
        )
    )
    found = [(fault.route, fault.path, fault.line, fault.column) for fault in error.faults]
    assert found == [
        ("a", "routes.a", 1, 30),
        ("a", "routes.a", 1, 39),
        ("b", "routes.b.priority", None, None),
        ("b", "routes.b.route", 2, 10),
    ]
    lines = str(error).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("m.json: routes.") for line in lines)


def test_schema_1_0_knows_strings_only():
    """Blank ones are skipped, objects are refused, routes may be absent."""
    old = {"schemaVersion": "1.0"}
    manifest = parse_manifest(a_manifest({"a": UP, "b": " "}, **old), file="m")
    assert [spec.name for spec in manifest.routes] == ["a"]
    assert paths(a_manifest({"r": {"route": UP}}, **old)) == ["routes.r"]
    document = a_manifest({}, **old)
    del document["routes"]
    assert parse_manifest(document, file="m").routes == ()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.1.0", "1.2", "1.3", "1.3.0.0"])
def test_versions_1_0_to_1_3_are_accepted(version):
    """Dotted versions of two to four numbers."""
    manifest = parse_manifest(a_manifest({"r": UP}, schemaVersion=version), file="m")
    assert manifest.schema_version == version


def test_members_of_later_schemas_are_ignored_with_a_warning():
    """The broker and the signature have no counterpart here."""
    document = a_manifest({"r": UP}, mqttBroker={}, integrity={})
    document["storeAndForwardConfiguration"]["storeLimits"] = {"maxSizeBytes": 1}
    warned = [warning.path for warning in parse_manifest(document, file="m").warnings]
    assert warned == ["mqttBroker", "integrity", "storeAndForwardConfiguration.storeLimits"]


def test_warnings_of_routes_carry_their_place():
    """What is hardly meant in a route text is a warning of the manifest."""
    (warning,) = parse_manifest(a_manifest({"r": "FROM /foo INTO $upstream"}), file="m").warnings
    assert (warning.route, warning.path, warning.line, warning.column) == ("r", "routes.r", 1, 6)


@pytest.mark.parametrize(
    ("entries", "priority"),
    [
        (f'"r": {{"route": "{UP}", "priority": 3}}, "r": "{UP}"', 3),
        (f'"r": "{UP}", "r": {{"route": "{UP}", "priority": 3}}', 3),
        (f'"r": {{"route": "{UP}", "priority": 1}}, "r": {{"route": "{UP}", "priority": 3}}', 3),
        (f'"r": {{"route": "{UP}", "priority": 3}}, "r": "{UP}", "r": "{UP}"', 3),
        (f'"r": "FROM /foo INTO $up", "r": "{UP}"', DEFAULT_PRIORITY),
    ],
)
def test_a_route_given_twice_gives_a_warning(entries, priority):
    """The new form wins over the old one, else the last one."""
    text = json.dumps(a_manifest({})).replace('"routes": {}', f'"routes": {{{entries}}}')
    manifest = parse_manifest(text, file="m")
    assert [spec.priority for spec in manifest.routes] == [priority]
    assert manifest.warnings
    assert {warning.path for warning in manifest.warnings} == {"routes.r"}


@pytest.mark.parametrize(
    ("once", "twice", "path"),
    [
        ('"priority": 1', '"priority": 1, "priority": 2', "routes.r1.priority"),
        (
            '"schemaVersion": "1.1"',
            '"schemaVersion": "1.0", "schemaVersion": "1.1"',
            "schemaVersion",
        ),
        (
            '"timeToLiveSecs": 7200',
            '"timeToLiveSecs": 7200, "timeToLiveSecs": 1',
            "storeAndForwardConfiguration.timeToLiveSecs",
        ),
    ],
)
def test_other_members_given_twice_are_refused(once, twice, path):
    """Nobody can tell which of two values was meant."""
    assert paths(json.dumps(with_route(priority=1)).replace(once, twice)) == [path]


def test_recency_is_read_and_checked():
    """Seconds from 1 on; the fallback is not better than the route's own priority."""
    rule = {"Seconds": 30, "FallbackPriority": 4}
    (spec,) = parse_manifest(with_route(priority=2, Recency=rule), file="m").routes
    assert spec.recency == Recency(seconds=30, fallback_priority=4)
    (spec,) = parse_manifest(with_route(priority=2, Recency={"Seconds": 1}), file="m").routes
    assert spec.recency == Recency(seconds=1, fallback_priority=DEFAULT_PRIORITY)


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ({"Seconds": 0}, "Seconds"),
        ({"FallbackPriority": 5}, "Seconds"),
        ({"Seconds": 5, "FallbackPriority": 10}, "FallbackPriority"),
        ({"Seconds": 5, "FallbackPriority": 1}, "FallbackPriority"),
        ({"Seconds": 5, "seconds": 5}, "seconds"),
    ],
)
def test_recency_out_of_range_is_refused(rule, path):
    """Each member has its own fault."""
    assert paths(with_route(priority=2, Recency=rule)) == [f"routes.r1.Recency.{path}"]


def test_recency_that_is_no_object_is_refused_and_one_that_does_nothing_warns():
    """The same priority before and after changes nothing."""
    assert paths(with_route(Recency=5)) == ["routes.r1.Recency"]
    manifest = parse_manifest(with_route(Recency={"Seconds": 5}), file="m")
    assert [warning.path for warning in manifest.warnings] == ["routes.r1.Recency.FallbackPriority"]


def test_delivery_rules_are_read():
    """Order and limits of attempts and age; 0 means unlimited and is kept apart from absent."""
    members = {"order": "strict", "maxAttempts": 0, "maxAgeSecs": 600}
    (spec,) = parse_manifest(with_route(**members), file="m").routes
    assert spec.rules == RouteRules(order="strict", max_attempts=0, max_age_s=600)


def test_the_fingerprint_covers_what_counts():
    """Order and wrapping do not count; texts, priorities, times, rules and the global time do."""
    routes = {"a": {"route": UP, "priority": 1}, "b": UP}
    base = parse_manifest(a_manifest(routes), file="m")
    turned = dict(reversed(routes.items()))
    wrapped = {"$edgeHub": {"properties.desired": a_manifest(turned)}}
    assert parse_manifest(json.dumps(wrapped), file="other").fingerprint == base.fingerprint
    changed = [
        a_manifest(routes | {"b": "FROM /* INTO $upstream"}),
        a_manifest(routes | {"a": {"route": UP, "priority": 2}}),
        a_manifest(routes | {"a": {"route": UP, "priority": 1, "timeToLiveSecs": 1}}),
        a_manifest(routes | {"a": {"route": UP, "priority": 1, "order": "skip"}}),
        a_manifest(routes | {"a": {"route": UP, "priority": 1, "Recency": {"Seconds": 9}}}),
        a_manifest(routes | {"c": UP}),
        a_manifest(routes, storeAndForwardConfiguration={"timeToLiveSecs": -1}),
    ]
    prints = {parse_manifest(document, file="m").fingerprint for document in changed}
    assert len(prints | {base.fingerprint}) == len(changed) + 1


def test_the_default_sends_everything_upstream_for_two_hours():
    """Without a manifest nothing is lost for want of one."""
    (spec,) = DEFAULT_MANIFEST.routes
    assert (spec.name, spec.route.text) == ("upstream", UP)
    assert spec.priority == DEFAULT_PRIORITY
    assert DEFAULT_MANIFEST.global_ttl_ms == 7_200_000
    assert not DEFAULT_MANIFEST.warnings


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": NaN}', "[" * 100_000, '{"a": ' + "9" * 5_000 + "}"]
)
def test_text_that_is_no_json_is_refused(text):
    """Broken, too deep or impossible JSON is a fault of the document."""
    assert refused(text).faults[0].path == ""


def test_lone_surrogates_in_names_are_refused():
    r"""A lone surrogate, which JSON can write as \ud800, can be neither stored nor sent."""
    faults = refused(
        '{"schemaVersion": "1.1", "storeAndForwardConfiguration": {"timeToLiveSecs": 1},'
        '"routes": {'
        '"a\\ud800": "FROM /messages/* INTO $upstream",'
        '"b": "FROM /messages/* INTO BrokeredEndpoint(\'/modules/m/inputs/\\udfff\')",'
        '"c\\ud83d\\ude00": "FROM /messages/* INTO $upstream"}}'
    ).faults
    assert [fault.path for fault in faults] == ["routes.a\ud800", "routes.b"]


def test_json_errors_say_where():
    """Line and column are those of the file."""
    fault = refused('{"schemaVersion": "1.1",\n  oops}').faults[0]
    assert (fault.line, fault.column) == (2, 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "schemaVersion",
                    "routes",
                    "storeAndForwardConfiguration",
                    "timeToLiveSecs",
                    "r",
                    "route",
                    "priority",
                    "Recency",
                    "Seconds",
                    "FallbackPriority",
                    "$edgeHub",
                    "properties.desired",
                    "modulesContent",
                    "order",
                    "",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_document_is_read_or_refused(document):
    """Whatever the document, there is a manifest or a `ManifestError`."""
    for form in (document, json.dumps(document), a_manifest({"r": document})):
        with contextlib.suppress(ManifestError):
            assert parse_manifest(form, file="m").fingerprint
