"""Synchronising twins with a scripted peer on a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.faults import DeviceConnectionError
from edgehub.mqtt.client_topics import DESIRED, GET_TWIN, REPORT, TWIN_RESULT, ClientPath
from edgehub.twins.document import ClientTwin, merged, size_of
from edgehub.twins.synchroniser import (
    ANSWER_TIMEOUT_S,
    AT_ONCE,
    PIECE_BYTES,
    RETRY_S,
    TwinSynchroniser,
)
from edgehub.twins.twins import ClientTwins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from edgehub.twins.table import Settle


class Request(NamedTuple):
    """What the hub has sent."""

    client_id: str
    path: str
    body: Any
    rid: str
    version: str | None
    at_ms: int | None


class Peer:
    """A peer that the test answers for."""

    def __init__(self) -> None:
        self.is_up = False
        self.foreign: set[str] = set()
        self.closed: set[str] = set()
        self.requests: list[Request] = []

    def speaks_for(self, client_id: str) -> bool:
        """Return whether requests about a client are sent at all."""
        return self.is_up and client_id not in self.foreign

    def carries(self, client_id: str) -> bool:
        """Return whether they can be sent now."""
        return self.speaks_for(client_id) and client_id not in self.closed

    def is_shared(self, client_id: str) -> bool:
        """Return whether other hubs report for a client too."""
        return client_id != "gw"

    @contextlib.asynccontextmanager
    async def reach(self, client_id: str) -> AsyncIterator[None]:
        """Fail for clients whose session cannot be opened."""
        if client_id in self.closed:
            raise DeviceConnectionError(client_id, "refused")
        yield

    def send(
        self,
        client_id: str,
        path: str,
        name: str = "",
        body: bytes = b"",
        *,
        rid: str | None = None,
        version: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Record a request."""
        assert not name
        assert rid is not None
        self.requests.append(
            Request(client_id, path, json.loads(body) if body else None, rid, version, at_ms)
        )


class Table:
    """A table that settles at once; implements what `ClientTwins` needs of `TwinTable`."""

    async def load(self) -> dict[str, ClientTwin]:
        """Return nothing."""
        return {}

    def save(self, _client_id: str, _document: bytes | None, settle: Settle) -> None:
        """Settle."""
        settle(0, None)


class Bench:
    """A synchroniser with twins, and a peer that is away at first."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.peer = Peer()
        self.changes: list[tuple[str, Any, int]] = []
        known: dict[str, Any] = {}
        self.twins = ClientTwins(Table(), known, hub_id="gw", bytes_max=10**6)  # type: ignore[arg-type]
        self.twins.desired_changed.append(lambda *change: self.changes.append(change))
        self.wanted: set[str] = set()
        self.sync = TwinSynchroniser(
            self.twins, self.peer, self.clock, is_wanted=self.wanted.__contains__
        )
        self.twins.reported_changed.append(self.sync.due)

    def report(self, client_id: str, patch: dict[str, Any], at_ms: int | None = None) -> None:
        """Report for a client."""
        self.twins.report(client_id, patch, lambda _token, _refusal: None, at_ms=at_ms)

    async def link(self, is_up: bool = True) -> None:
        """Let the link come or go."""
        self.peer.is_up = is_up
        self.sync.link_changed(is_up)
        await turns()

    async def next(self) -> Request:
        """Return the next request."""
        await turns()
        return self.peer.requests.pop(0)

    async def answer(
        self, request: Request, status: int, body: Any = None, version: int | None = None
    ) -> None:
        """Answer a request."""
        parameters = {"$rid": request.rid}
        if version is not None:
            parameters["$version"] = str(version)
        path = ClientPath(request.client_id, TWIN_RESULT, str(status), parameters)
        text = b"" if body is None else json.dumps(body).encode()
        self.sync.take(request.client_id, path, text)
        await turns()

    async def desired(self, client_id: str, version: int, patch: dict[str, Any]) -> None:
        """Send a change of desired properties."""
        path = ClientPath(client_id, DESIRED, "", {"$version": str(version)})
        self.sync.take(client_id, path, json.dumps({**patch, "$version": version}).encode())
        await turns()


async def turns() -> None:
    """Give all tasks their turns."""
    for _ in range(10):
        await asyncio.sleep(0)


def document(desired: dict[str, Any], version: int, **reported: Any) -> dict[str, Any]:
    """Return a twin as a peer answers it."""
    return {"desired": {**desired, "$version": version}, "reported": {**reported, "$version": 9}}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Run a synchroniser."""
    bench = Bench()
    task = asyncio.create_task(bench.sync.run())
    yield bench
    task.cancel()
    await asyncio.wait({task})


async def test_a_session_that_cannot_be_opened_is_tried_again(bench: Bench) -> None:
    """After a minute, or once it was opened for something else; others go on."""
    bench.peer.closed.add("d")
    await bench.link()
    bench.report("d", {"a": 1})
    bench.report("e", {"a": 1})
    assert (await bench.next()).client_id == "e"
    assert bench.sync.is_fresh("d")
    bench.peer.closed.clear()
    assert not bench.sync.is_fresh("d")
    assert not bench.peer.requests
    await bench.clock.advance(RETRY_S)
    read = await bench.next()
    assert (read.client_id, read.path) == ("d", GET_TWIN)
    bench.sync.session_changed("d", False)
    bench.sync.session_changed("d", True)
    again = await bench.next()
    assert again == read._replace(rid=again.rid)
    assert again.rid != read.rid


async def test_an_outage_ends_with_one_request_each_way(bench: Bench) -> None:
    """What was reported meanwhile is one patch, on top of what the peer has."""
    for number in range(50):
        bench.report("d", {"n": number, "list": [number]})
    await bench.link()
    request = await bench.next()
    assert (request.path, request.version) == (GET_TWIN, None)
    await bench.answer(request, 200, document({"x": 1}, 4, other=True))
    assert bench.changes == [("d", {"x": 1}, 4)]
    request = await bench.next()
    assert (request.path, request.body) == (REPORT, {"n": 49, "list": [49]})
    bench.report("d", {"n": None})
    await bench.answer(request, 204)
    request = await bench.next()
    assert request.body == {"n": None}
    await bench.answer(request, 204)
    assert not list(bench.twins.unsent())
    assert bench.twins.get("d").reported == {"other": True, "list": [49]}
    assert bench.peer.requests == []


async def test_a_long_report_is_sent_in_pieces(bench: Bench) -> None:
    """Nothing that is sent at once holds up what else is to leave; in the end all is there."""
    report = {f"name-{number}": {"text": "x" * 300, "n": number} for number in range(20)}
    bench.report("d", report)
    await bench.link()
    await bench.answer(await bench.next(), 200, document({}, 1))
    arrived: dict[str, Any] = {}
    pieces = 0
    while list(bench.twins.unsent()):
        request = await bench.next()
        assert size_of(request.body) <= PIECE_BYTES
        arrived = merged(arrived, request.body)
        pieces += 1
        await bench.answer(request, 204, version=9 + pieces)
    assert arrived == report
    assert pieces < 10


async def test_desired_properties_are_those_of_the_peer(bench: Bench) -> None:
    """Changes follow one another; an old one is nothing, a gap is read again, 304 is no change."""
    bench.wanted.add("d")
    twin = ClientTwin(desired={"a": 1}, desired_version=3, peer_version=7)
    bench.twins.put("d", twin, lambda *_: None)
    await bench.link()
    request = await bench.next()
    assert request.version == "3,7"
    await bench.answer(request, 304)
    await bench.desired("d", 4, {"b": 2})
    await bench.desired("d", 4, {"b": 3})
    await bench.desired("d", 2, {"b": 4})
    assert bench.changes == [("d", {"b": 2}, 4)]
    await bench.desired("d", 7, {"c": 1})
    request = await bench.next()
    await bench.answer(request, 200, document({"b": 2, "c": 1, "d": 0}, 7))
    assert bench.changes[1:] == [("d", {"a": None, "c": 1, "d": 0}, 7)]


async def test_what_was_reported_elsewhere_is_read(bench: Bench) -> None:
    """Once the client is back, and when the version of a report shows that others were before."""
    bench.sync.due("d")
    await bench.link()
    await bench.answer(await bench.next(), 200, document({}, 1, a=1))
    assert bench.sync.is_fresh("d")
    bench.sync.left("d")
    assert not bench.sync.is_fresh("d")
    bench.sync.due("d")
    request = await bench.next()
    assert request.version == "1,9"
    await bench.answer(request, 304)
    bench.report("d", {"b": 1})
    await bench.answer(await bench.next(), 204, version=10)
    assert bench.peer.requests == []
    bench.report("d", {"b": 2})
    await bench.answer(await bench.next(), 204, version=12)
    request = await bench.next()
    assert (request.path, request.version) == (GET_TWIN, None)
    changed = document({}, 1, a=2, b=2)
    changed["reported"]["$version"] = 12
    await bench.answer(request, 200, changed)
    assert bench.twins.get("d").reported == {"a": 2, "b": 2}
    assert bench.twins.get("d").peer_versions == "1,12"
    assert bench.peer.requests == []


@pytest.mark.parametrize(
    ("here_ms", "there_ms", "sent"),
    [
        (1_000, 2_000, {"b": 1, "n": {"x": 1}}),
        (2_000, 1_000, {"a": 1, "b": 1, "gone": None, "n": {"x": 1, "y": 1}}),
        (None, 2_000, {"a": 1, "b": 1, "gone": None, "n": {"x": 1, "y": 1}}),
        (1_000, None, {"a": 1, "b": 1, "gone": None, "n": {"x": 1, "y": 1}}),
    ],
)
async def test_an_older_report_does_not_replace_a_newer_one(
    bench: Bench, here_ms: int | None, there_ms: int | None, sent: dict[str, Any]
) -> None:
    """What the client has reported elsewhere since then stays; the rest of the report is sent."""
    await bench.link()
    bench.sync.due("d")
    base = document({}, 1, a=0, b=0, gone=0, n={"x": 0, "y": 0})
    await bench.answer(await bench.next(), 200, base)
    await bench.link(False)
    bench.report("d", {"a": 1, "b": 1, "gone": None, "n": {"x": 1, "y": 1}}, here_ms)
    await bench.link()
    there = document({}, 1, a=2, b=0, gone=2, n={"x": 0, "y": 2})
    there["reported"] |= {"$version": 10, "$reportedAt": there_ms}
    await bench.answer(await bench.next(), 200, there)
    request = await bench.next()
    assert (request.path, request.version, request.at_ms) == (REPORT, "10", here_ms)
    assert request.body == sent
    await bench.answer(request, 204, version=11)
    assert not bench.twins.is_unsent("d")
    both = {"a": 2, "b": 0, "gone": 2, "n": {"x": 0, "y": 2}}
    assert bench.twins.get("d").reported == merged(both, sent)


async def test_a_report_behind_one_of_another_hub_is_sent_after_a_reading(bench: Bench) -> None:
    """The peer refuses a report that names a version that is not its newest."""
    bench.sync.due("d")
    await bench.link()
    await bench.answer(await bench.next(), 200, document({}, 1, a=1))
    bench.report("d", {"a": 2}, 1_000)
    request = await bench.next()
    assert (request.path, request.version) == (REPORT, "9")
    await bench.answer(request, 412)
    there = document({}, 1, a=3)
    there["reported"] |= {"$version": 10, "$reportedAt": 2_000}
    await bench.answer(await bench.next(), 200, there)
    assert bench.peer.requests == []
    assert bench.twins.get("d").reported == {"a": 3}
    assert not bench.twins.is_unsent("d")


async def test_the_hubs_own_twin_is_not_read_again_for_a_client_that_leaves(bench: Bench) -> None:
    """No other hub reports for it."""
    bench.sync.due("gw")
    await bench.link()
    await bench.answer(await bench.next(), 200, document({}, 1))
    bench.sync.left("gw")
    assert bench.sync.is_fresh("gw")


async def test_a_client_that_listens_is_read_again_after_an_outage(bench: Bench) -> None:
    """Also one whose twin is empty at the peer and here."""
    bench.wanted.add("d")
    bench.sync.due("d")
    await bench.link()
    await bench.answer(await bench.next(), 200, document({}, 1))
    await bench.link(False)
    await bench.link()
    request = await bench.next()
    assert (request.path, request.version) == (GET_TWIN, "1,9")
    await bench.answer(request, 304)
    assert bench.peer.requests == []


async def test_a_silent_peer_is_tried_again_later(bench: Bench) -> None:
    """After a while, or with the next link, and only a few requests are open at once."""
    for number in range(AT_ONCE + 3):
        bench.report(f"d{number}", {"n": 1})
    await bench.link()
    asked: set[str] = set()
    for _ in range(3):
        assert len(bench.peer.requests) <= AT_ONCE
        asked.update(request.client_id for request in bench.peer.requests)
        bench.peer.requests.clear()
        await bench.clock.advance(ANSWER_TIMEOUT_S + 1)
        await turns()
    assert len(asked) == AT_ONCE + 3
    await bench.clock.advance(RETRY_S)
    await turns()
    assert {request.client_id for request in bench.peer.requests} == asked
    await bench.link(is_up=False)
    bench.peer.requests.clear()
    await bench.link()
    assert len(bench.peer.requests) == AT_ONCE


async def test_a_client_of_another_hub_is_left_alone(bench: Bench) -> None:
    """A peer that does not take it is asked once a link, and what it reported stays unsent."""
    bench.report("d", {"n": 1})
    await bench.link()
    await bench.answer(await bench.next(), 403)
    bench.report("d", {"n": 2})
    await turns()
    assert bench.peer.requests == []
    assert bench.sync.is_fresh("d")
    assert bench.twins.is_unsent("d")


async def test_a_report_that_the_peer_refuses_is_not_repeated(bench: Bench) -> None:
    """The next one is sent."""
    bench.report("d", {"n": 1})
    await bench.link()
    await bench.answer(await bench.next(), 304)
    await bench.answer(await bench.next(), 400, {"message": "no"})
    await bench.clock.advance(2 * RETRY_S)
    await turns()
    assert bench.peer.requests == []
    assert bench.sync.refused_total == 1
    bench.report("d", {"m": 2})
    assert (await bench.next()).body == {"m": 2}


async def test_a_reader_waits_for_the_peer_and_not_for_ever(bench: Bench) -> None:
    """It gets what the peer has, or after a time what is here."""
    await bench.link()
    assert not bench.sync.is_fresh("d")
    reader = asyncio.create_task(bench.sync.refreshed("d", 10))
    await bench.answer(await bench.next(), 200, document({"x": 1}, 2))
    await reader
    assert bench.sync.is_fresh("d")
    reader = asyncio.create_task(bench.sync.refreshed("e", 10))
    await turns()
    await bench.clock.advance(11)
    await reader
    assert not bench.sync.is_fresh("e")


@pytest.mark.parametrize("version", ["", "x", "-1", "9" * 5000, "9" * 16, "\u0662"])
async def test_a_change_without_a_version_is_a_gap(bench: Bench, version: str) -> None:
    """The twin is read again; nothing that a peer sends is applied by halves."""
    await bench.link()
    bench.sync.take("d", ClientPath("d", DESIRED, "", {"$version": version}), b'{"x":1}')
    request = await bench.next()
    assert request.path == GET_TWIN
    await bench.answer(request, 200, document({"y": 1}, 2))
    assert bench.changes == [("d", {"y": 1}, 2)]


async def test_a_change_for_what_is_no_client_is_dropped(bench: Bench) -> None:
    """No twin of such an id comes to be."""
    await bench.link()
    for client_id in ("", "a b", "d/m/x"):
        await bench.desired(client_id, 2, {"x": 1})
    assert bench.changes == []
    assert bench.peer.requests == []


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"desired": 1},
        {"desired": {}},
        {"desired": {"$version": 2}},
        {"desired": {"$version": 2}, "reported": {"x": 1}},
        {"desired": {"$version": 2, "a b": 1}, "reported": {"$version": 2}},
        {"desired": {"$version": 2**60}, "reported": {"$version": 2}},
    ],
)
async def test_an_answer_that_is_no_twin_changes_nothing(bench: Bench, body: Any) -> None:
    """Nor does one about another client, or with another id."""
    bench.wanted.add("d")
    bench.report("d", {"n": 1})
    await bench.link()
    request = await bench.next()
    await bench.answer(request._replace(client_id="x"), 200, document({"x": 1}, 2))
    await bench.answer(request._replace(rid="x"), 200, document({"x": 1}, 2))
    await bench.answer(request, 200, body)
    assert bench.changes == []
    assert bench.twins.get("d").desired == {}
