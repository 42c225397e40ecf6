"""Live routes: ids, references and what is shared below, under any sequence of changes."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from edgehub.message import Message
from edgehub.routes.content import read_body
from edgehub.routes.live import BuildError, LiveRoutes
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey, Tenant
from tests.support.route_tables import EMPTY, CountingHost

IDS = [RouteKey(DEFAULT_TENANT, name) for name in ("a", "b", "c", "d")]
IDS += [RouteKey(Tenant("acme", "two"), name) for name in ("a", "b")]
SOURCES = ["/messages/*", "/mqtt/plant/+/x", "/mqtt/plant/1/x"]
CONDITIONS = ["kind = 'k1'", "kind = 'k2'", "true"]


def content(tenant, number: int):
    """Return one of a few contents, of which some share source or endpoint."""
    source, condition = SOURCES[number % 3], CONDITIONS[number // 3 % 3]
    body = {
        "route": f'FROM {source} WHERE {condition} INTO Endpoint("e{number % 2}")',
        "priority": number % 4,
    }
    return read_body(body, tenant).content


def live_routes(host) -> LiveRoutes:
    """Return live routes of which none runs."""
    return LiveRoutes(host, EMPTY, hub_id="hub")


changes = st.lists(
    st.dictionaries(st.sampled_from(IDS), st.none() | st.integers(0, 11), min_size=1),
    min_size=5,
    max_size=12,
)


@given(changes, st.sets(st.integers(0, 11), max_size=3))
def test_what_runs_is_what_was_asked_for(steps, broken):
    """After each step: ids, references, sources, endpoints and the table all say the same."""
    host = CountingHost()
    live = live_routes(host)
    expected: dict[RouteKey, int] = {}
    for tenant in {key.tenant for key in IDS}:
        host.broken |= {content(tenant, number).hash for number in broken}
    for step in steps:
        wanted = {k: None if n is None else content(k.tenant, n) for k, n in step.items()}
        faults = asyncio.run(live.change(wanted))
        for key, number in step.items():
            if number in broken:
                assert key in faults
            elif number is None:
                expected.pop(key, None)
            else:
                expected[key] = number
        check(live, host, {key: content(key.tenant, number) for key, number in expected.items()})
    asyncio.run(live.change(dict.fromkeys(expected)))
    assert (len(live), live.live_count, host.open) == (0, 0, set())
    assert live.table.endpoints == frozenset()


def check(live: LiveRoutes, host: CountingHost, expected) -> None:
    """Compare everything that can be seen."""
    assert live.ids() == {key: each.hash for key, each in expected.items()}
    references = Counter(each.hash for each in expected.values())
    assert host.running == set(references)
    assert live.live_count == len(references)
    for key, each in live.ids().items():
        others = {k.id for k, h in live.ids().items() if h == each and k != key}
        assert live.sharing(key, len(expected)) == tuple(sorted(others))
    needed = {f"source:{c.tenant.label}{c.spec.route.source}" for c in expected.values()}
    needed |= {f"endpoint:{c.spec.route.sink.endpoint_id}" for c in expected.values()}
    assert host.open == needed
    table = live.table
    assert table is host.table or not expected
    assert {spec.name for spec in table.manifest.routes} == {key.name for key in expected}
    for source in ("/messages/", "/mqtt/plant/1/x", "/mqtt/plant/2/x", "/mqtt/other"):
        for kind in ("k1", "k2"):
            for tenant in {key.tenant for key in IDS}:
                compare(table, expected, source, kind, tenant)


def compare(table, expected, source: str, kind: str, tenant: Tenant) -> None:
    """A message goes where the routes of its tenant send it, and names all of them, best first."""
    message = Message("d", None, source, {"kind": kind}, {}, b"")
    message.tenant = tenant.label
    want: dict[str, list[tuple[int, str]]] = {}
    for key, each in expected.items():
        if key.tenant != tenant:
            continue
        if not takes(each.spec.route.source, source):
            continue
        text = each.spec.route.condition.text
        if "true" not in text and kind not in text:
            continue
        endpoint = each.spec.route.sink.endpoint_id
        want.setdefault(endpoint, []).append((each.spec.priority, key.name))
    got = {result.endpoint_id: result for result in table.evaluate(message)}
    assert got.keys() == want.keys()
    for endpoint, ranked in want.items():
        ranked.sort()
        assert got[endpoint].routes == tuple(name for _, name in ranked)
        assert got[endpoint].priority == ranked[0][0]


def takes(source, message_source: str) -> bool:
    """Return whether one of the few sources takes a message."""
    text = str(source)
    if text == "/messages/":
        return message_source == "/messages/"
    if "+" in text:
        return message_source.startswith("/mqtt/plant/")
    return message_source == text


async def test_sharers_count_as_one_route():
    """A hundred ids on one content are one route that names them all, sorted."""
    host = CountingHost()
    live = live_routes(host)
    one = content(DEFAULT_TENANT, 0)
    keys = [RouteKey(DEFAULT_TENANT, f"u{number:02}") for number in range(100)]
    await live.change(dict.fromkeys(keys, one))
    assert host.starts[one.hash] == 1
    (result,) = live.table.evaluate(Message("d", None, "/messages/", {"kind": "k1"}, {}, b""))
    assert result.routes == tuple(f"u{number:02}" for number in range(100))


async def test_the_new_one_is_built_before_the_old_is_let_go():
    """What both need is never closed, and an old table is in force until the new one is."""
    host = CountingHost()
    live = live_routes(host)
    key = RouteKey(DEFAULT_TENANT, "r1")
    await live.change({key: content(DEFAULT_TENANT, 0)})
    opened = set(host.open)
    await live.change({key: content(DEFAULT_TENANT, 6)})
    assert host.open == opened
    assert not host.closed
    await live.change({key: content(DEFAULT_TENANT, 1)})
    assert host.closed == dict.fromkeys(opened, 1)


async def test_what_cannot_be_built_leaves_what_runs():
    """The last good one goes on under the id, also when another hub could build the new one."""
    host = CountingHost()
    live = live_routes(host)
    key = RouteKey(DEFAULT_TENANT, "r1")
    good, bad = content(DEFAULT_TENANT, 0), content(DEFAULT_TENANT, 1)
    await live.change({key: good})
    host.broken.add(bad.hash)
    assert await live.change({key: bad}) == {key: "the host refuses it"}
    assert live.hash_of(key) == good.hash
    host.broken.clear()
    assert await live.change({key: bad}) == {}
    assert live.hash_of(key) == bad.hash


async def test_places_in_the_table_are_used_again():
    """They are bit numbers; a route that changes for years must not make them ever larger."""
    live = live_routes(CountingHost())
    key = RouteKey(DEFAULT_TENANT, "r1")
    for number in range(50):
        await live.change({key: content(DEFAULT_TENANT, number % 12)})
    assert live._slots == 2  # noqa: SLF001 - nothing else shows it


async def test_a_source_that_cannot_be_opened_leaves_no_endpoint_open():
    """The endpoint was opened before; it is closed again, and opened with the next route."""
    host = SourcelessHost()
    live = live_routes(host)
    key = RouteKey(DEFAULT_TENANT, "r1")
    assert await live.change({key: content(DEFAULT_TENANT, 0)}) == {key: "no such source here"}
    assert (host.open, live.endpoint_count) == (set(), 0)
    host.has_sources = True
    assert await live.change({key: content(DEFAULT_TENANT, 0)}) == {}
    assert len(host.open) == 2


class SourcelessHost(CountingHost):
    """A host that opens no source until told to."""

    has_sources = False

    def open_source(self, tenant, source) -> None:
        """See `RouteHost`."""
        if not self.has_sources:
            raise BuildError("no such source here")
        super().open_source(tenant, source)


async def test_a_change_cut_short_leaves_no_half():
    """A cancelled change has happened or has not, and the next one goes on from there."""
    host = CountingHost()
    live, tenant = live_routes(host), DEFAULT_TENANT
    keys = [RouteKey(tenant, f"r{number}") for number in range(400)]
    contents = [
        read_body(f"FROM /messages/* WHERE as_number(k) > {n} INTO $upstream", tenant).content
        for n in range(400)
    ]
    for turns in range(8):
        task = asyncio.get_running_loop().create_task(
            live.change(dict(zip(keys, contents, strict=True)))
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert len(live) in {0, 400}
        assert host.running == (set() if not live else {each.hash for each in contents})
    await live.change(dict(zip(keys, contents, strict=True)))
    assert host.running == {each.hash for each in contents}
    await live.change(dict.fromkeys(keys))
    assert host.open == set()
