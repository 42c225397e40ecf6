"""Whose message it is, and how many its tenant may send."""

from __future__ import annotations

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identities import Identities, IdentityList
from edgehub.devices.identity_file import Identity, changing, read_identities
from edgehub.devices.passwords import PasswordHash
from edgehub.devices.tenancy import Tenancy
from edgehub.message import Message, Refusal
from edgehub.router import TenantRouter
from edgehub.routes.content import read_body
from edgehub.routes.live import LiveRoutes
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey, Tenant
from tests.support.route_tables import EMPTY, CountingHost

PASSWORD = PasswordHash.dummy()
ONE, TWO = "acme/one", "acme/two"


def identity(identity_id: str, tenant: str = "", *on_behalf: str) -> Identity:
    """Make an entry."""
    return Identity(id=identity_id, password=PASSWORD, tenant=tenant, on_behalf=on_behalf)


def message(device: str, module: str | None = None) -> Message:
    """Make a message of a sender."""
    return Message(device, module, "/messages/", {"kind": "a"}, {}, b"")


@pytest.fixture
def identities():
    """Return a list that is closed afterwards."""
    made = Identities(lambda: None)
    yield made
    made.close()


def apply(identities: Identities, *entries: Identity) -> None:
    """Put entries in force."""
    identities.apply(IdentityList(entries={each.id: each for each in entries}))


def test_a_sender_has_the_tenant_of_its_identity(identities):
    """Its own, else its device's, else that of the one who speaks for it."""
    apply(
        identities,
        identity("d1", ONE),
        identity("d2/m", TWO),
        identity("child", TWO, "north-*"),
        identity("d3"),
    )
    tenancy = Tenancy(identities, {}, ManualClock())
    assert tenancy.of(message("d1")) == ONE
    assert tenancy.of(message("d1", "m")) == ONE
    assert tenancy.of(message("d2", "m")) == TWO
    assert tenancy.of(message("north-7")) == TWO
    assert [tenancy.of(message(device)) for device in ("d2", "d3", "stranger")] == ["", "", ""]


def test_a_sender_of_two_tenants_has_none(identities):
    """Who could belong to two is taken for neither."""
    apply(identities, identity("a", ONE, "x-*"), identity("b", TWO, "x-1*"))
    tenancy = Tenancy(identities, {}, ManualClock())
    assert (tenancy.of(message("x-2")), tenancy.of(message("x-1"))) == (ONE, "")


def test_another_list_counts_at_once(identities):
    """What was remembered of senders goes with the list it came from."""
    tenancy = Tenancy(identities, {}, ManualClock())
    apply(identities, identity("d1", ONE))
    assert tenancy.of(message("d1")) == ONE
    apply(identities, identity("d1", TWO))
    assert tenancy.of(message("d1")) == TWO


async def test_an_allowance_fills_on_elapsed_time(identities):
    """W-07: a step of the wall clock changes nothing; a second gives a second's messages."""
    clock = ManualClock()
    tenancy = Tenancy(identities, {ONE: 3, TWO: None}, clock)
    assert [tenancy.allows(ONE) for _ in range(4)] == [True, True, True, False]
    clock.step_wall(-3_600_000)
    assert not tenancy.allows(ONE)
    await clock.advance(1)
    assert [tenancy.allows(ONE) for _ in range(4)] == [True, True, True, False]
    assert all(tenancy.allows(TWO) and tenancy.allows("") for _ in range(100))
    assert tenancy.refused_total == {ONE: 3, TWO: 0}


class Queues:
    """Stands in the place of the store: remembers what comes."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, ...]] = []

    def append(self, message, results, settle, token) -> None:
        """Take a message."""
        del message
        self.taken += [result.routes for result in results]
        settle(token, None)


async def test_routes_see_the_messages_of_their_tenant_alone(identities):
    """The same route of two tenants takes each message once, under its own name."""
    apply(identities, identity("d1", ONE), identity("d2", TWO), identity("d3"))
    live = LiveRoutes(CountingHost(), EMPTY, hub_id="hub")
    tenants = [Tenant("acme", "one"), Tenant("acme", "two"), DEFAULT_TENANT]
    body = "FROM /messages/* INTO $upstream"
    await live.change(
        {RouteKey(tenant, "r1"): read_body(body, tenant).content for tenant in tenants}
    )
    store, settled = Queues(), []
    tenancy = Tenancy(identities, {ONE: 1}, ManualClock())
    router = TenantRouter(live.table, store, None, tenancy)
    for device in ("d1", "d2", "d3", "d1"):
        router.submit(message(device), lambda _, refusal: settled.append(refusal), 0)
    assert store.taken == [("acme/one/r1",), ("acme/two/r1",), ("r1",)]
    assert settled == [None, None, None, Refusal.LIMIT]
    # Also of what has its receivers anyway.
    for device in ("d2", "d3"):
        router.offer(message(device), lambda _, refusal: settled.append(refusal), 0)
    router.offer(message("d1"), lambda _, refusal: settled.append(refusal), 0)
    assert settled[4:] == [None, None, Refusal.LIMIT]


def test_a_file_keeps_tenants(tmp_path):
    """What is written reads back, and what is no tenant is a fault with its line."""
    path = tmp_path / "identities"
    with changing(path) as entries:
        entries["d1"] = identity("d1", ONE)
        entries["d2"] = identity("d2")
    assert {i: e.tenant for i, e in read_identities(path).items()} == {"d1": ONE, "d2": ""}
    path.write_text(path.read_text().replace(ONE, "acme"))
    with pytest.raises(Exception, match=r"identities:1: tenant: 'acme' is no tenant"):
        read_identities(path)
