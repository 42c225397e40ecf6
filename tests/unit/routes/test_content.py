"""What a route says: canonical form, hash, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.routes.content import InvalidRouteError, content_hash, read_body, read_stored
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey, Tenant

ROUTE = "FROM /messages/* WHERE kind = 'alarm' INTO $upstream"
FULL = {
    "route": ROUTE,
    "priority": 3,
    "timeToLiveSecs": 60,
    "Recency": {"Seconds": 10, "FallbackPriority": 7},
    "order": "skip",
    "maxAttempts": 4,
    "maxAgeSecs": 50,
    "name": "alarm",
    "description": "größe ☃",
}


def content(body, tenant=DEFAULT_TENANT):
    """Read a body that is right."""
    return read_body(body, tenant).content


def test_hash_is_that_of_the_documented_document():
    """SHA-256 over canonical JSON of route and tenant, so that others can compute it."""
    import hashlib  # noqa: PLC0415 - the other way to compute it

    document = {"route": {"priority": 3, "route": ROUTE}, "tenant": ["default", "default"]}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert content({"route": ROUTE, "priority": 3}).hash == expected


@given(st.randoms())
def test_order_of_members_does_not_matter(rng):
    """The same members in any order are the same content."""
    members = list(FULL.items())
    rng.shuffle(members)
    assert content(dict(members)).hash == content(FULL).hash


@pytest.mark.parametrize(
    "same",
    [
        {"route": ROUTE},
        {"route": ROUTE, "timeToLiveSecs": 0},
        {"route": ROUTE, "priority": 2_000_000_000},
        {"route": ROUTE, "enabled": False},
        {"route": ROUTE, "id": "r1", "revision": 7, "created": "x", "status": "running"},
        {"route": ROUTE, "name": "", "description": None},
    ],
)
def test_defaults_and_server_kept_members_do_not_count(same):
    """What says nothing changes no hash."""
    assert content(same).hash == content(ROUTE).hash


@pytest.mark.parametrize("member", [name for name in FULL if name != "route"])
def test_every_other_member_counts(member):
    """A content without one of its members is another content."""
    full = FULL if member != "priority" else {**FULL, "Recency": {"Seconds": 10}}
    rest = {name: value for name, value in full.items() if name != member}
    assert content(rest).hash != content(full).hash


def test_tenants_never_share_a_hash():
    """Not even those whose names join to the same text."""
    tenants = [DEFAULT_TENANT, Tenant("my", "orgapp"), Tenant("myorg", "app")]
    assert len({content(ROUTE, tenant).hash for tenant in tenants}) == 3


def test_canonical_text_reads_back():
    """What a storage keeps is the same content again."""
    original = content(FULL)
    again = read_stored(original.text, DEFAULT_TENANT)
    assert (again.hash, again.members) == (original.hash, original.members)
    assert content_hash(original.text, DEFAULT_TENANT) == original.hash


@pytest.mark.parametrize(
    ("body", "path", "column"),
    [
        ({"route": "FROM /messages/* WHERE a == 1 INTO $upstream"}, "route", 27),
        ("FROM /messages/*", "route", 17),
        ({"route": ROUTE, "priority": 10}, "priority", None),
        ({"route": ROUTE, "priority": True}, "priority", None),
        ({"route": ROUTE, "Recency": {"Seconds": 0}}, "Recency.Seconds", None),
        ({"route": ROUTE, "timeToLive": 4}, "timeToLive", None),
        ({"route": ROUTE, "enabled": 1}, "enabled", None),
        ({"route": ROUTE, "id": 5}, "id", None),
        ({"route": ROUTE, "name": "a/b"}, "name", None),
        ({"route": ROUTE, "description": "x" * 1025}, "description", None),
        ({"route": ROUTE, "description": "\ud800"}, "description", None),
        ({"priority": 1}, "route", None),
        ({}, "route", None),
        (None, "route", None),
        ([ROUTE], "route", None),
        (7, "route", None),
    ],
)
def test_faults_say_where(body, path, column):
    """Path of the member, and line and column in the route text."""
    with pytest.raises(InvalidRouteError) as refused:
        read_body(body, DEFAULT_TENANT)
    fault = refused.value.faults[0]
    assert (fault.path, fault.column, fault.route) == (path, column, None)
    assert fault.line == (None if column is None else 1)


def test_all_faults_come_at_once():
    """One answer names everything that is wrong."""
    with pytest.raises(InvalidRouteError) as refused:
        read_body({"route": "FROM", "priority": -1, "enabled": "no"}, DEFAULT_TENANT)
    assert {fault.path for fault in refused.value.faults} == {"route", "priority", "enabled"}


@pytest.mark.parametrize("text", ["", "/", "a/", "/b", "a/b/c", "a b/c", "-a/b", "a", "é/b"])
def test_names_of_tenants_are_checked(text):
    """Only organisation/application of plain characters is a tenant."""
    if not text:
        assert Tenant.parse(text) == DEFAULT_TENANT
        return
    with pytest.raises(ValueError, match="no tenant"):
        Tenant.parse(text)


@given(st.text(min_size=1))
def test_keys_read_back(route_id: str):
    """Any id may stand in a key, slashes included."""
    key = RouteKey(Tenant("acme", "one"), route_id)
    assert RouteKey.parse(str(key)) == key
    assert key.name == f"acme/one/{route_id}"
    assert RouteKey(DEFAULT_TENANT, route_id).name == route_id
