"""The HTTP endpoint against a scripted peer on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from edgehub.clock import Clock, ManualClock, SystemClock
from edgehub.endpoints.http import HttpEndpoint, HttpEndpointOptions
from edgehub.endpoints.http_link import HttpLinkOptions
from edgehub.message import EndpointId, FailureKind
from edgehub.storage.credentials import TlsOptions
from tests.support.certificates import Authority
from tests.support.http_peer import Reply, http_peer, results
from tests.support.memory_queue import a_row
from tests.support.ports import free_port
from tests.support.recording_listener import RecordingListener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from edgehub.message import SendResult

pytestmark = pytest.mark.integration

NOW_MS = 1_790_000_000_000


class Parts:
    """An endpoint and a recording listener."""

    def __init__(self, port: int, clock: Clock, link: dict[str, Any], **options: Any) -> None:
        self.listener = RecordingListener()
        self.endpoint = HttpEndpoint(
            EndpointId("cloud"),
            HttpEndpointOptions(
                link=HttpLinkOptions(**{"url": f"http://127.0.0.1:{port}/in?k=1", **link}),
                **options,
            ),
            clock=clock,
            rng=random.Random(5),
            utc_ms=lambda hub_ms: NOW_MS + hub_ms,
        )

    def send(self, *offsets: int, device: str = "dev-1") -> None:
        """Hand rows over in one batch."""
        rows = [a_row(offset, device=device) for offset in offsets]
        self.endpoint.wire_bytes(rows)
        self.endpoint.send_batch(rows, self.listener.settle)

    async def settled(self, count: int) -> dict[int, SendResult]:
        """Wait for that many results."""
        await self.listener.until(lambda: len(self.listener.results) >= count)
        return self.listener.results

    @property
    def kinds(self) -> dict[int, FailureKind | None]:
        """Results by offset, None = delivered."""
        return {offset: result.kind for offset, result in self.listener.results.items()}


@contextlib.asynccontextmanager
async def endpoint(
    port: int, clock: Clock | None = None, link: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Parts]:
    """Run an endpoint for the length of the block; gives it once it has tried to connect."""
    parts = Parts(port, clock or SystemClock(), link or {}, **options)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(parts.endpoint.run(parts.listener))
        await parts.listener.until(lambda: bool(parts.listener.links))
        yield parts
        task.cancel()


async def test_rows_leave_as_a_json_array(tmp_path: Path) -> None:
    """Target, headers and records are as documented; 204 confirms every row."""
    secret = tmp_path / "token"
    secret.write_text("s3cret\nrest")
    link = {"token_file": secret, "headers": {"X-Site": "hall 2"}, "user_agent": "edgehub/1"}
    async with http_peer() as peer, endpoint(peer.port, link=link) as parts:
        parts.send(1, 2)
        await parts.settled(2)
        assert parts.kinds == {1: None, 2: None}
        assert peer.heads[0] == {
            "": "POST /in?k=1 HTTP/1.1",
            "host": f"127.0.0.1:{peer.port}",
            "user-agent": "edgehub/1",
            "content-type": "application/json",
            "accept": "application/json",
            "x-site": "hall 2",
            "authorization": "Bearer s3cret",
            "content-length": peer.heads[0]["content-length"],
        }
        assert peer.batches[0][0] == {
            "id": "m1",
            "device": "dev-1",
            "module": None,
            "output": None,
            "enqueued": "2026-09-21T14:13:20.000Z",
            "properties": {},
            "body": "x" * 200,
        }
        assert parts.endpoint.unsent_bytes() == 0
        assert parts.endpoint.state == "up"


async def test_rows_of_one_sender_leave_one_request_at_a_time() -> None:
    """Requests are bounded by rows and bytes, keep the order and use one connection."""
    async with http_peer() as peer, endpoint(peer.port, batch_rows_max=4) as parts:
        parts.send(*range(10))
        await parts.settled(10)
        assert [len(batch) for batch in peer.batches] == [4, 4, 2]
        assert list(itertools.chain(*peer.ids)) == [f"m{number}" for number in range(10)]
        assert peer.connects == 1
    async with http_peer() as peer, endpoint(peer.port, batch_bytes_max=700) as parts:
        parts.send(*range(5))
        await parts.settled(5)
        assert [len(batch) for batch in peer.batches] == [2, 2, 1]


async def test_other_senders_do_not_wait_for_an_answer() -> None:
    """Each has a request of its own under way; the second one of a sender waits for its first."""
    async with http_peer() as peer, endpoint(peer.port, requests_max=3) as parts:
        peer.may_read.clear()
        parts.send(0, 1)
        await peer.until(lambda: len(peer.heads) == 1)
        parts.send(2, 3, device="dev-2")
        await peer.until(lambda: len(peer.heads) == 2)
        parts.send(4)
        parts.send(5, device="dev-3")
        await peer.until(lambda: len(peer.heads) == 3)
        assert parts.listener.results == {}
        peer.may_read.set()
        await parts.settled(6)
        batches = [set(batch) for batch in peer.ids]
        assert {"m0", "m1"} in batches[:3]
        assert {"m2", "m3"} in batches[:3]
        assert batches[3] == {"m4"}
        assert peer.connects == 3


async def test_no_more_requests_than_allowed() -> None:
    """With one request at a time the second sender waits as well, and shares the next request."""
    async with http_peer() as peer, endpoint(peer.port, requests_max=1) as parts:
        peer.may_read.clear()
        parts.send(0)
        await peer.until(lambda: len(peer.heads) == 1)
        parts.send(1, device="dev-2")
        parts.send(2, device="dev-3")
        peer.may_read.set()
        await parts.settled(3)
        assert peer.ids == [["m0"], ["m1", "m2"]]
        assert peer.connects == 1


async def test_a_row_is_blamed_with_no_other_request_under_way() -> None:
    """A refused request is narrowed down alone; the others are delivered once, in order."""

    def script(records: list[dict[str, Any]]) -> Reply:
        return Reply(400 if "m3" in {record["id"] for record in records} else 204)

    async with http_peer(script) as peer, endpoint(peer.port) as parts:
        for first in range(0, 24, 4):
            parts.send(*range(first, first + 4), device=f"dev-{first}")
        await parts.settled(24)
        assert parts.kinds[3] is FailureKind.REJECTED
        assert {parts.kinds[n] for n in range(24) if n != 3} == {None}
        accepted = [batch for batch in peer.ids if "m3" not in batch]
        assert sorted(itertools.chain(*accepted)) == sorted(f"m{n}" for n in range(24) if n != 3)


async def test_one_broken_connection_takes_the_link_down() -> None:
    """What the other connections had under way comes back uncounted, once."""
    async with http_peer() as peer, endpoint(peer.port) as parts:
        peer.may_read.clear()
        parts.send(0)
        await peer.until(lambda: len(peer.heads) == 1)
        parts.send(1, device="dev-2")
        await peer.until(lambda: len(peer.heads) == 2)
        peer.cut()
        await parts.settled(2)
        assert set(parts.kinds.values()) == {FailureKind.DISCONNECTED}
        await parts.listener.until(lambda: len(parts.listener.links) == 2)
        assert parts.endpoint.state == "down"
        peer.may_read.set()


async def test_gzip_is_a_matter_of_settings() -> None:
    """With gzip the body is compressed and says so."""
    async with http_peer() as peer, endpoint(peer.port, gzip=True) as parts:
        parts.send(*range(400))
        await parts.settled(400)
        assert peer.heads[0]["content-encoding"] == "gzip"
        assert int(peer.heads[0]["content-length"]) < 5000
        assert sum(map(len, peer.batches)) == 400
        assert parts.endpoint.unsent_bytes() == 0


async def test_results_by_id_decide_row_by_row() -> None:
    """A status for a row is that row's; rows that are not named are delivered."""
    reply = results({"m1": 200, "m2": 422, "m3": 413, "m4": 503, "m9": 400}, reason="no such tag")
    async with http_peer(lambda _: reply) as peer, endpoint(peer.port) as parts:
        parts.send(1, 2, 3, 4, 5)
        found = await parts.settled(5)
        assert parts.kinds == {
            1: None,
            2: FailureKind.REJECTED,
            3: FailureKind.TOO_LARGE,
            4: FailureKind.TRANSIENT,
            5: None,
        }
        assert found[2].reason == "422 Unprocessable Entity: no such tag"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, FailureKind.REJECTED), (422, FailureKind.REJECTED), (413, FailureKind.TOO_LARGE)],
)
async def test_a_refused_batch_is_bisected_to_the_row(status: int, kind: FailureKind) -> None:
    """Only the rows that the peer refuses alone are blamed, all others are delivered once."""
    bad = {"m3", "m7"}
    delivered: list[str] = []

    def script(records: list[dict[str, Any]]) -> Reply:
        ids = [record["id"] for record in records]
        if bad & set(ids):
            return Reply(status, b"bad row", Content_Type="text/plain")
        delivered.extend(ids)
        return Reply()

    async with http_peer(script) as peer, endpoint(peer.port) as parts:
        parts.send(*range(16))
        found = await parts.settled(16)
        refused = {offset for offset, result in found.items() if result.kind is not None}
        assert refused == {3, 7}
        assert found[3].kind is kind
        assert found[3].reason.endswith("bad row")
        assert delivered == [f"m{n}" for n in range(16) if n not in {3, 7}]
        assert parts.endpoint.unsent_bytes() == 0


async def test_a_row_that_makes_the_peer_fail_is_isolated() -> None:
    """500 for whatever holds row 5: row 5 alone is transient, the link stays up."""

    def script(records: list[dict[str, Any]]) -> Reply:
        return Reply(500 if "m5" in [record["id"] for record in records] else 204)

    async with http_peer(script) as peer, endpoint(peer.port) as parts:
        parts.send(*range(16))
        await parts.settled(16)
        failed = {offset for offset, kind in parts.kinds.items() if kind is not None}
        assert failed == {5}
        assert parts.kinds[5] is FailureKind.TRANSIENT
        assert parts.listener.links == ["up"]
        assert len(peer.batches) < 16


async def test_rows_that_make_the_peer_fail_one_by_one_are_their_own_fault() -> None:
    """A doubt about the peer does not outlive what was to be sent with it."""
    async with http_peer(lambda _: Reply(500)) as peer, endpoint(peer.port) as parts:
        for offset in (1, 2, 3):
            parts.send(offset)
            await parts.settled(offset)
        assert set(parts.kinds.values()) == {FailureKind.TRANSIENT}
        assert parts.listener.links == ["up"]


@pytest.mark.parametrize("status", [404, 500, 502])
async def test_a_peer_that_fails_at_everything_is_down(status: int) -> None:
    """Three requests tell an ill peer from an ill row; one row counts as tried, none is blamed."""
    clock = ManualClock()
    async with http_peer(lambda _: Reply(status)) as peer, endpoint(peer.port, clock) as parts:
        parts.send(*range(64))
        await parts.settled(64)
        await parts.listener.until(lambda: len(parts.listener.links) == 2)
        assert len(peer.batches) == 3
        assert parts.kinds[0] is FailureKind.TRANSIENT
        assert {parts.kinds[n] for n in range(1, 64)} == {FailureKind.DISCONNECTED}
        assert parts.listener.links[1].startswith(f"down: {status}")
        assert parts.endpoint.state == "down"
        peer.script = lambda _records: Reply()
        parts.listener.results.clear()
        await clock.advance(1.3)
        await parts.listener.until(lambda: len(parts.listener.links) == 3)
        parts.send(1)
        await parts.settled(1)
        assert parts.kinds == {1: None}


@pytest.mark.parametrize("status", [401, 407])
async def test_a_peer_that_does_not_let_us_in_parks(status: int) -> None:
    """Every row handed over says so, also those not sent yet."""
    async with (
        http_peer(lambda _: Reply(status)) as peer,
        endpoint(peer.port, batch_rows_max=2) as parts,
    ):
        parts.send(1, 2, 3)
        await parts.settled(3)
        assert set(parts.kinds.values()) == {FailureKind.UNAUTHORIZED}
        assert len(peer.batches) == 1


async def test_a_sender_that_the_peer_forbids_is_found_among_others() -> None:
    """403 to a request is narrowed down to the sender, not to its rows; the others arrive."""

    def script(records: list[dict[str, Any]]) -> Reply:
        return Reply(403 if any(each["device"] == "other-9" for each in records) else 204)

    async with http_peer(script) as peer, endpoint(peer.port) as parts:
        parts.send(1, 2, 3)
        parts.send(*range(4, 20), device="other-9")
        parts.send(20, 21, 22)
        await parts.settled(22)
        kinds = parts.kinds
        assert {kinds[number] for number in range(4, 20)} == {FailureKind.NOT_AUTHORIZED}
        assert {kinds[number] for number in (1, 2, 3, 20, 21, 22)} == {None}
        assert len(peer.batches) < 16
        assert parts.endpoint.state == "up"


async def test_a_row_that_the_peer_forbids_by_name() -> None:
    """403 in the results of an answer is about that row's sender, too."""

    def script(records: list[dict[str, Any]]) -> Reply:
        return results({records[0]["id"]: 403})

    async with http_peer(script) as peer, endpoint(peer.port) as parts:
        parts.send(1, 2)
        await parts.settled(2)
        assert parts.kinds == {1: FailureKind.NOT_AUTHORIZED, 2: None}


@pytest.mark.parametrize(
    ("reply", "wait_s"),
    [
        (Reply(429, Retry_After="7"), 7.0),
        (Reply(503, Retry_After="99999"), 3600.0),
        (Reply(429), None),
        (
            Reply(
                503,
                Retry_After="Fri, 01 May 2026 12:00:30 GMT",
                Date="Fri, 01 May 2026 12:00:00 GMT",
            ),
            30.0,
        ),
    ],
)
async def test_a_pause_that_the_peer_asks_for(reply: Reply, wait_s: float | None) -> None:
    """Retry-After in seconds or as a date; it holds for what was not sent yet, too."""
    async with http_peer(lambda _: reply) as peer, endpoint(peer.port, batch_rows_max=1) as parts:
        parts.send(1, 2)
        found = await parts.settled(2)
        assert set(parts.kinds.values()) == {FailureKind.THROTTLED}
        assert [found[1].retry_after_s, found[2].retry_after_s] == [wait_s, wait_s]
        assert len(peer.batches) == 1


async def test_pause_in_the_middle_of_a_refused_batch_ends_for_all_its_senders() -> None:
    """Parts that were not sent again are given back, and their senders are served afterwards."""
    replies = iter([Reply(400), Reply(429)])
    async with http_peer(lambda _: next(replies, Reply())) as peer, endpoint(peer.port) as parts:
        rows = [a_row(offset, device=f"dev-{offset}") for offset in (1, 2)]
        parts.endpoint.send_batch(rows, parts.listener.settle)
        await parts.settled(2)
        assert set(parts.kinds.values()) == {FailureKind.THROTTLED}
        rows = [a_row(offset, device=f"dev-{offset - 2}") for offset in (3, 4)]
        parts.endpoint.send_batch(rows, parts.listener.settle)
        await parts.settled(4)
        assert (parts.kinds[3], parts.kinds[4]) == (None, None)


async def test_redirects_are_not_followed() -> None:
    """A redirect takes the link down and names where it points."""
    reply = Reply(302, Location="https://login.example/")
    async with http_peer(lambda _: reply) as peer, endpoint(peer.port, ManualClock()) as parts:
        parts.send(1)
        found = await parts.settled(1)
        assert found[1].kind is FailureKind.DISCONNECTED
        assert "https://login.example/" in found[1].reason


async def test_results_that_cannot_be_read_take_the_link_down() -> None:
    """What was delivered is not known then, so nothing counts as delivered."""
    for body in (b'{"results": 1}', b'{"results": [1]}', b'{"results": [{"id": "m1"}]}'):
        reply = Reply(200, body)
        async with (
            http_peer(lambda _, reply=reply: reply) as peer,
            endpoint(peer.port, ManualClock()) as parts,
        ):
            parts.send(1)
            found = await parts.settled(1)
            assert found[1].kind is FailureKind.DISCONNECTED
            assert "results" in found[1].reason


async def test_answers_that_are_no_json_confirm_all() -> None:
    """A plain 200 from any web server will do."""
    for body in (b"OK", b"{not json", b'{"ok": true}', b"[1]", b""):
        reply = Reply(200, body)
        async with http_peer(lambda _, reply=reply: reply) as peer, endpoint(peer.port) as parts:
            parts.send(1)
            await parts.settled(1)
            assert parts.kinds == {1: None}


async def test_an_idle_connection_that_the_peer_closes_costs_nothing() -> None:
    """Between requests, and as the next one is written: it goes over a new connection."""
    async with http_peer(lambda _: Reply(closes=True)) as peer, endpoint(peer.port) as parts:
        for offset in range(5):
            parts.send(offset)
            await parts.settled(offset + 1)
        assert set(parts.kinds.values()) == {None}
        assert parts.listener.links == ["up"]
        assert peer.connects >= 5


async def test_a_cut_before_the_answer_is_a_lost_link() -> None:
    """Rows come back uncounted, the link returns after a back-off."""
    clock = ManualClock()
    async with http_peer(lambda _: None) as peer, endpoint(peer.port, clock) as parts:
        parts.send(1, 2)
        await parts.settled(2)
        assert set(parts.kinds.values()) == {FailureKind.DISCONNECTED}
        assert parts.listener.links[-1].startswith("down: ")
        assert len(peer.batches) == 1
        await clock.advance(1.3)
        await parts.listener.until(lambda: parts.listener.links[-1] == "up")


async def test_a_silent_peer_is_given_up() -> None:
    """The oldest row counts as timed out, the others as disconnected; a reused link, too."""
    clock = ManualClock()
    async with http_peer() as peer, endpoint(peer.port, clock, timeout_s=10) as parts:
        parts.send(0)
        await parts.settled(1)
        peer.silent = True
        parts.send(1, 2, 3)
        await peer.until(lambda: len(peer.batches) == 2)
        await clock.advance(9)
        assert len(parts.listener.results) == 1
        await clock.advance(8)
        found = await parts.settled(4)
        assert parts.kinds == {
            0: None,
            1: FailureKind.TIMEOUT,
            2: FailureKind.DISCONNECTED,
            3: FailureKind.DISCONNECTED,
        }
        assert "no answer for" in found[1].reason
        assert len(peer.batches) == 2


async def test_a_slow_peer_is_not_a_silent_one() -> None:
    """Each byte of its answer begins the time anew."""
    clock = ManualClock()
    async with http_peer() as peer, endpoint(peer.port, clock, timeout_s=10) as parts:
        peer.silent = True
        parts.send(0)
        await peer.until(lambda: len(peer.batches) == 1)
        (writer,) = peer.writers
        for piece in (b"HTTP/1.1 204", b" No Content\r\n", b"Content-Length: 0\r\n"):
            await clock.advance(7)
            writer.write(piece)
            await clock.advance(0)
        assert parts.listener.results == {}
        writer.write(b"\r\n")
        await parts.settled(1)
        assert parts.kinds == {0: None}


async def test_a_peer_that_is_away_is_asked_again() -> None:
    """Nobody listens: down with the reason, tried with back-off, at once on demand."""
    clock, port = ManualClock(), free_port()
    async with endpoint(port, clock) as parts:
        assert parts.listener.links == ["down: Connection refused"]
        assert parts.endpoint.state == "connecting"
        async with http_peer(port=port) as peer:
            parts.endpoint.retry_now()
            await parts.listener.until(lambda: parts.listener.links[-1] == "up")
            parts.send(1)
            await parts.settled(1)
            assert peer.ids == [["m1"]]
            # The peer may not wait for a connection that the endpoint keeps.
            await parts.endpoint.close()


async def test_missing_secrets_park(tmp_path: Path) -> None:
    """A token file that is not there or empty needs a person."""
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for file, word in ((tmp_path / "none", "No such file"), (empty, "empty")):
        async with (
            http_peer() as peer,
            endpoint(peer.port, ManualClock(), link={"token_file": file}) as parts,
        ):
            assert parts.listener.links[0].startswith("parked: ")
            assert word in parts.listener.links[0]
            assert parts.endpoint.state == "parked"


async def test_tls_both_ways(tmp_path: Path) -> None:
    """The peer asks for a certificate and gets it; one that nobody vouches for parks."""
    authority = Authority(tmp_path)
    certificate, key = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    own, own_key = authority.client("gateway-7")
    async with http_peer(tls=context) as peer:
        link: dict[str, Any] = {"url": f"https://127.0.0.1:{peer.port}/in"}
        trusted = TlsOptions(ca_file=authority.certificate, certificate_file=own, key_file=own_key)
        async with endpoint(peer.port, link={**link, "tls": trusted}, batch_rows_max=7) as parts:
            parts.send(*range(100))
            await parts.settled(100)
            assert set(parts.kinds.values()) == {None}
            assert parts.endpoint.unsent_bytes() == 0
        async with endpoint(peer.port, ManualClock(), link=link) as parts:
            assert parts.listener.links[0].startswith("parked: certificate of the peer")
        wrong = replace(trusted, key_file=key)
        async with endpoint(peer.port, ManualClock(), link={**link, "tls": wrong}) as parts:
            assert parts.listener.links[0].startswith("parked: key_file: ")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_200_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_200_000,
    ],
)
async def test_answers_of_no_bound_or_form_end_the_connection(data: bytes) -> None:
    """Memory stays bounded whatever the peer sends."""

    class Raw(Reply):
        def data(self) -> bytes:
            return data

    async with http_peer(lambda _: Raw()) as peer, endpoint(peer.port, ManualClock()) as parts:
        parts.send(1)
        found = await parts.settled(1)
        assert found[1].kind is FailureKind.DISCONNECTED


async def test_an_answer_that_overtakes_its_request_ends_the_connection() -> None:
    """The rest of that request would stand before the next one, and nobody reads it."""
    refusal, taken = Reply(413).data(), Reply().data()
    answers = iter([refusal, taken])
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(answers))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, endpoint(server.sockets[0].getsockname()[1], ManualClock()) as parts:
        for offset, size in ((1, 2**24), (2, 1)):
            rows = [a_row(offset, body=bytes(size))]
            parts.endpoint.send_batch(rows, parts.listener.settle)
            await parts.settled(offset)
        assert parts.kinds == {1: FailureKind.TOO_LARGE, 2: None}
        for writer in writers:
            writer.transport.abort()


async def test_answers_without_length_end_with_the_connection() -> None:
    """An answer of HTTP/1.0 style, and one with a 100 before it."""

    class Raw(Reply):
        def data(self) -> bytes:
            return (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n"
                + json.dumps({"results": [{"id": "m1", "status": 400}]}).encode()
            )

    async with http_peer(lambda _: Raw(closes=True)) as peer, endpoint(peer.port) as parts:
        parts.send(1, 2)
        await parts.settled(2)
        assert parts.kinds == {1: FailureKind.REJECTED, 2: None}


async def test_unsent_bytes_are_those_that_have_not_left() -> None:
    """A peer that does not read leaves most of a large request with us; then nothing is left."""
    async with http_peer() as peer, endpoint(peer.port, batch_rows_max=1) as parts:
        peer.may_read.clear()
        rows = [a_row(1, body=b"x" * 20_000_000), a_row(2)]
        parts.endpoint.send_batch(rows, parts.listener.settle)
        await peer.until(lambda: bool(peer.heads))
        assert 5_000_000 < parts.endpoint.unsent_bytes() < 20_000_600
        peer.may_read.set()
        await parts.settled(2)
        assert parts.endpoint.unsent_bytes() == 0


async def test_closing_gives_rows_back() -> None:
    """What has no answer when the hub stops counts as disconnected."""
    async with http_peer() as peer:
        peer.silent = True
        async with endpoint(peer.port) as parts:
            parts.send(1, 2)
            await peer.until(lambda: bool(peer.batches))
        assert set(parts.kinds.values()) == {FailureKind.DISCONNECTED}
