"""The HTTP head on loopback: answers after the commit, refusals, slow and hostile clients."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identities import CLOCK_TOLERANCE_S, Identities, read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.devices.server_tls import read_server_tls
from edgehub.errors import StartupError
from edgehub.heads.http import connection
from edgehub.heads.http.context import HttpContext
from edgehub.heads.http.head import HttpHead
from edgehub.heads.http.submission import Submission
from edgehub.message import Refusal
from edgehub.methods.methods import Methods
from edgehub.mqtt.batch import PLAIN_BYTES
from edgehub.mqtt.hub_path import HubPath
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.settings import HttpSettings
from tests.support.certificates import Authority
from tests.support.http_head import (
    BATCH,
    EVENTS,
    STORE_ID,
    NoWays,
    basic,
    no_owner,
    request,
    running,
)
from tests.support.ports import free_port
from tests.support.scripted_router import ScriptedRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from edgehub.heads.head import Submit

pytestmark = pytest.mark.integration

HOST = b"Host: localhost\r\n"


async def test_204_comes_after_the_commit() -> None:
    """Nothing is answered before the store has settled; then the connection goes on."""
    async with running() as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request(b"one", iothub_app_kind="alarm"))
        await bench.until(lambda: len(bench.router.pending) == 1)
        assert bench.head.statistics().waiting_bytes > 0
        assert not client.reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001 - nothing has come
        bench.router.settle()
        answer = await client.answer()
        assert (answer.status, answer.body) == (204, b"")
        assert "date" in answer.headers
        bench.router.holding = False
        assert (await client.post(b"two")).status == 204
        assert [message.body for message in bench.router.messages] == [b"one", b"two"]
        shown = bench.head.statistics()
        assert (shown.messages_total, shown.answers, shown.waiting_bytes) == (2, {"204": 2}, 0)


async def test_a_batch_is_answered_once_all_are_settled() -> None:
    """One of three missing, no answer."""
    entries = [{"body": text, "base64Encoded": False} for text in "abc"]
    async with running() as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request(json.dumps(entries).encode(), Content_Type=BATCH))
        await bench.until(lambda: len(bench.router.pending) == 3)
        bench.router.settle(2)
        await asyncio.sleep(0)
        assert bench.head.statistics().answers == {}
        bench.router.settle()
        assert (await client.answer()).status == 204
        assert [message.body for message in bench.router.messages] == [b"a", b"b", b"c"]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let others have their turn after each message, and count the turns that batches take."""
    monkeypatch.setattr(connection, "TURN_S", 0)
    taken: list[None] = []
    go_on = Submission.go_on

    def counted(submission: Submission, submit: Submit, is_long: Callable[[], bool]) -> bool:
        taken.append(None)
        return go_on(submission, submit, is_long)

    monkeypatch.setattr(Submission, "go_on", counted)
    return taken


def a_batch(texts: Iterable[str], padding: int = 0) -> bytes:
    """Build a request with a batch; from `PLAIN_BYTES` on it is read entry by entry."""
    entries = [{"body": text, "base64Encoded": False} for text in texts]
    return request(b" " * padding + json.dumps(entries).encode(), Content_Type=BATCH)


@pytest.mark.parametrize("padding", [0, PLAIN_BYTES])
async def test_a_batch_is_taken_in_turns(turns: list[None], padding: int) -> None:
    """Others come between its messages; their order, and what follows the batch, stay."""
    texts = [f"text {number}" for number in range(100)]
    async with running() as bench:
        client = await bench.connect()
        client.send(a_batch(texts, padding) + request(b"after"))
        assert (await client.answer()).status == 204
        assert (await client.answer()).status == 204
        bodies = [message.body.decode() for message in bench.router.messages]
        assert bodies == [*texts, "after"]
        assert len(turns) >= 2 * len(texts)
        assert bench.head.statistics().waiting_bytes == 0


async def test_a_batch_in_turns_is_taken_whole_or_not_at_all(turns: list[None]) -> None:
    """A wrong last message refuses all; of a client that leaves nothing is held for ever."""
    async with running() as bench:
        client = await bench.connect()
        entries = [{"body": ""}] * 20 + [{"body": "?"}]
        client.send(request(json.dumps(entries).encode(), Content_Type=BATCH) + request(b"after"))
        answer = await client.answer()
        assert (answer.status, answer.problem["index"]) == (400, 20)
        assert (await client.answer()).status == 204
        assert [message.body for message in bench.router.messages] == [b"after"]
        assert bench.head.statistics().waiting_bytes == 0
        turns.clear()
        client.send(a_batch("x" * 1000))
        await bench.until(lambda: bool(turns))
        bench.close()
        await bench.until(lambda: bench.head.statistics().connections == 0)
        await bench.until(lambda: bench.head.statistics().waiting_bytes == 0)


async def test_one_wrong_message_refuses_the_whole_batch() -> None:
    """400 with its index, and nothing was handed to the store."""
    async with running() as bench:
        client = await bench.connect()
        body = b'[{"body":"YQ=="},{"body":"?"},{"body":"YQ=="}]'
        answer = await client.post(body, Content_Type=BATCH)
        assert answer.status == 400
        assert answer.problem["index"] == 1
        assert bench.router.messages == []
        assert (await client.post()).status == 204


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Refusal.LIMIT, 507),
        (Refusal.UNAVAILABLE, 503),
        (Refusal.CLOSED, 503),
        (Refusal.INVALID, 400),
    ],
)
async def test_a_refusal_of_the_store_is_passed_on(refusal: Refusal, status: int) -> None:
    """Which message was not taken, and how many of the request are stored nevertheless."""
    async with running() as bench:
        bench.router.refusals = {1: refusal}
        client = await bench.connect()
        body = b'[{"body":"YQ=="},{"body":"Yg=="},{"body":"Yw=="}]'
        answer = await client.post(body, Content_Type=BATCH)
        assert answer.status == status
        assert (answer.problem["index"], answer.problem["stored"]) == (1, 1)
        # What follows a refused message would leave a hole.
        assert [message.body for message in bench.router.messages] == [b"a", b"b"]
        assert bench.head.statistics().waiting_bytes == 0


async def test_a_refusal_that_comes_late_counts_the_others() -> None:
    """The first refused one is named, whatever the order of settling."""
    async with running() as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request(b'[{"body":""},{"body":""},{"body":""}]', Content_Type=BATCH))
        await bench.until(lambda: len(bench.router.pending) == 3)
        bench.router.pending.reverse()
        bench.router.settle(2, refusal=Refusal.LIMIT)
        bench.router.settle()
        answer = await client.answer()
        assert (answer.problem["index"], answer.problem["stored"]) == (1, 1)


async def test_no_commit_in_time_is_503() -> None:
    """With Retry-After; what was handed in is counted to its end, the late commit harms nobody."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request(b"one"))
        await bench.until(lambda: len(bench.router.pending) == 1)
        await clock.advance(29)
        assert bench.head.statistics().answers == {}
        await clock.advance(3)
        answer = await client.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "30")
        assert bench.head.statistics().waiting_bytes > 0
        bench.router.holding = False
        assert (await client.post(b"two")).status == 204
        bench.router.settle()
        await asyncio.sleep(0)
        assert bench.head.statistics().waiting_bytes == 0
        assert (await client.post(b"three")).status == 204


async def test_a_body_cut_short_takes_no_room() -> None:
    """What had come of it is let go with its connection."""
    async with running() as bench:
        client = await bench.connect()
        client.send(request(b"x" * 1000)[:-500])
        await bench.until(lambda: bench.head.statistics().waiting_bytes == 500)
        client.close()
        await bench.until(lambda: bench.head.statistics().connections == 0)
        assert bench.head.statistics().waiting_bytes == 0


async def test_each_wait_that_ends_is_reported_as_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On one connection a sign-in that takes too long, then a commit that does."""
    asked = asyncio.Event()

    async def hangs(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Identities, "verify", hangs)
    clock = ManualClock()
    async with running(clock=clock) as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request(Authorization=basic("press-1", "secret")))
        await asked.wait()
        await clock.advance(32)
        assert (await client.answer()).problem["detail"] == "too many sign-ins wait"
        client.send(request())
        await bench.until(lambda: len(bench.router.pending) == 1)
        await clock.advance(32)
        assert "it may still be" in (await client.answer()).problem["detail"]
        bench.router.settle()


async def test_late_commit_answers_no_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was told to come again signs in while its first message gets stored."""
    asked, let_in = asyncio.Event(), asyncio.Event()

    async def waits(*_: object, **__: object) -> None:
        asked.set()
        await let_in.wait()

    monkeypatch.setattr(Identities, "verify", waits)
    clock = ManualClock()
    async with running(clock=clock) as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request())
        await bench.until(lambda: len(bench.router.pending) == 1)
        await clock.advance(32)
        assert (await client.answer()).status == 503
        client.send(request(Authorization=basic("press-1", "wrong")))
        await asked.wait()
        bench.router.settle()
        # Its answer would be written a turn later.
        await asyncio.sleep(0)
        let_in.set()
        assert (await client.answer()).status == 401


@pytest.fixture
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests of 100 000 bytes wait."""
    monkeypatch.setattr("edgehub.heads.http.context.WAITING_BYTES_MAX", 100_000)


@pytest.mark.usefixtures("small_bound")
async def test_too_much_that_waits_is_503() -> None:
    """The bound on memory holds over all connections; afterwards everybody is served again."""
    async with running() as bench:
        bench.router.holding = True
        clients = [await bench.connect() for _ in range(6)]
        for client in clients[:5]:
            client.send(request(b"x" * 19_000))
        await bench.until(lambda: len(bench.router.pending) == 5)
        answer = await clients[5].post(b"x" * 19_000)
        assert (answer.status, answer.headers["retry-after"]) == (503, "10")
        bench.router.settle()
        for client in clients[:5]:
            assert (await client.answer()).status == 204
        bench.router.holding = False
        again = await bench.connect()
        assert (await again.post(b"x" * 19_000)).status == 204


@pytest.mark.usefixtures("small_bound")
async def test_clients_without_a_password_leave_half_to_the_others(tmp_path: Path) -> None:
    """What waits for the disk of anonymous clients never refuses a client with an identity."""
    file = tmp_path / "identities"
    secret = str(PasswordHash.of(b"s3cret"))
    file.write_text(json.dumps({"id": "press-1", "password": secret}), "utf-8")
    file.chmod(0o600)
    async with running(identities_file=file) as bench:
        bench.router.holding = True
        clients = [await bench.connect() for _ in range(3)]
        for client in clients[:2]:
            client.send(request(b"x" * 19_000, path="/devices/other/messages/events"))
        await bench.until(lambda: len(bench.router.pending) == 2)
        refused = await clients[2].post(b"x" * 19_000, path="/devices/other/messages/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        identified = await bench.connect()
        headers = {"Authorization": basic("press-1", "s3cret")}
        identified.send(request(b"x" * 19_000, path="/devices/press-1/messages/events", **headers))
        await bench.until(lambda: len(bench.router.pending) == 3)
        bench.router.settle()
        for client in (*clients[:2], identified):
            assert (await client.answer()).status == 204


@pytest.mark.usefixtures("small_bound")
async def test_bodies_that_are_read_leave_half_to_the_others(tmp_path: Path) -> None:
    """Neither those without a password nor those with a wrong one refuse a client its body."""
    file = tmp_path / "identities"
    secret = str(PasswordHash.of(b"s3cret"))
    file.write_text(json.dumps({"id": "press-1", "password": secret}), "utf-8")
    file.chmod(0o600)
    path = "/devices/press-1/messages/events"
    right, wrong = ({"Authorization": basic("press-1", each)} for each in ("s3cret", "wrong"))
    async with running(identities_file=file) as bench:
        identified = await bench.connect()
        assert (await identified.post(path=path, **right)).status == 204
        for headers in ({}, wrong):
            part = request(b"x" * 40_000, path=path, **headers)
            slow = [await bench.connect() for _ in range(2)]
            slow[0].send(part[:-10_000])
            await bench.until(lambda: bench.head.statistics().waiting_bytes == 30_000)
            slow[1].send(part[:-10_000])
            assert (await slow[1].answer()).status == 503
            assert (await identified.post(b"x" * 60_000, path=path, **right)).status == 204
            slow[0].writer.transport.abort()
            await bench.until(lambda: bench.head.statistics().waiting_bytes == 0)


async def test_connections_leave_half_to_the_others(tmp_path: Path) -> None:
    """The oldest one that has not signed in and asks for nothing gives way to a new one."""
    file = tmp_path / "identities"
    secret = str(PasswordHash.of(b"s3cret"))
    file.write_text(json.dumps({"id": "press-1", "password": secret}), "utf-8")
    file.chmod(0o600)
    path = "/devices/press-1/messages/events"
    headers = {"Authorization": basic("press-1", "s3cret")}
    async with running(identities_file=file, connections_max=4) as bench:
        signed_in = []
        for _ in range(2):
            idle = [await bench.connect() for _ in range(3)]
            assert await idle[0].ended() == b""
            client = await bench.connect()
            assert (await client.post(path=path, **headers)).status == 204
            signed_in.append(client)
        for _ in range(4):
            await bench.connect()
        for client in signed_in:
            assert (await client.post(path=path, **headers)).status == 204
        (connections, *_) = bench.head.statistics().bounds
        assert (connections.used, connections.anonymous, connections.limit) == (4, 2, 4)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(path="/nowhere"), 404),
        (request(path="/devices/a b/messages/events".replace(" ", "%20")), 400),
        (request(method="GET"), 405),
        (request(method="PUT"), 405),
        (request(Content_Type="multipart/form-data; boundary=x"), 415),
        (request(Content_Type=f"{BATCH}; charset=latin1"), 415),
        (request(iothub_nothing="1"), 400),
        (request(b"x" * 300_000), 413),
        (request(b"x" * 200, iothub_app_x="y" * 2000), 413),
        (request(b"[]", Content_Type=BATCH), 400),
        (b"GET / HTTP/9\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (request(X="y" * 20_000), 431),
    ],
)
async def test_refused_requests(data: bytes, status: int) -> None:
    """Each with its status and a problem document; nothing is stored."""
    async with running(message_bytes_max=2000) as bench:
        client = await bench.connect()
        client.send(data)
        answer = await client.answer()
        assert answer.status == status
        assert answer.problem["status"] == status
        assert answer.problem["detail"]
        assert bench.router.messages == []


async def test_what_is_refused_for_what_it_is_is_reported() -> None:
    """Of clients that may send: size and content; a wrong path or method is no message."""
    async with running(message_bytes_max=2000) as bench:
        client = await bench.connect()
        client.send(request(b"x" * 200, iothub_app_x="y" * 2000))
        assert (await client.answer()).status == 413
        client.send(request(b"[]", Content_Type=BATCH))
        assert (await client.answer()).status == 400
        assert (await client.post(b"x", path="/nowhere")).status == 404
        assert (await client.post(b"x", method="GET")).status == 405
        assert (await client.post(b"x" * 3000)).status == 413
        assert (await client.post(b"abc", Content_Type=f"{BATCH}; charset=x")).status == 415
        client.send(request(b"nonsense", Expect="100-continue", Content_Length="9000"))
        assert (await client.answer()).status == 413
        assert bench.router.told == [
            ("press-1", 200, "too_large"),
            ("press-1", 2, "malformed"),
            ("press-1", 3000, "too_large"),
            ("press-1", 3, "malformed"),
            ("press-1", 9000, "too_large"),
        ]


async def test_what_no_route_takes_is_acknowledged() -> None:
    """As by the original hub; the router has counted it."""
    async with running() as bench:
        bench.router.refusals[0] = Refusal.UNROUTED
        client = await bench.connect()
        assert (await client.post(b"x")).status == 204


@pytest.mark.parametrize("refusal", [each for each in Refusal if each is not Refusal.UNROUTED])
async def test_what_the_store_refuses_is_reported_by_the_store(refusal: Refusal) -> None:
    """The head does not count it again."""
    async with running() as bench:
        bench.router.refusals[0] = refusal
        client = await bench.connect()
        assert (await client.post(b"x")).status in {400, 503, 507}
        assert bench.router.told == []


async def test_a_refusal_keeps_the_connection_where_it_can() -> None:
    """Small bodies are passed over and the next request is served; HEAD gets no body."""
    async with running() as bench:
        client = await bench.connect()
        for size in (1000, 65_536):
            assert (await client.post(b"x" * size, path="/nowhere")).status == 404
        client.send(request(b"", method="HEAD") + request(b"next"))
        head = (await client.reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\n")
        assert (await client.answer()).status == 204


async def test_an_oversize_body_is_refused_before_it_has_come() -> None:
    """Announced or chunked: the answer comes early, then the connection ends without a reset."""
    async with running(message_bytes_max=1000) as bench:
        for body in (
            b"POST %s HTTP/1.1\r\n%sContent-Length: 9000000\r\n\r\n" % (EVENTS.encode(), HOST),
            b"POST %s HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n7d0\r\n"
            % (EVENTS.encode(), HOST)
            + b"x" * 2000,
        ):
            client = await bench.connect()
            client.send(body)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            for _ in range(50):
                client.send(b"x" * 10_000)
            assert await client.ended() == b""
            client.close()
        announced, chunk = bench.router.told
        assert announced == ("press-1", 9_000_000, "too_large")
        assert (chunk[0], chunk[2]) == ("press-1", "too_large")
        assert 1000 < chunk[1] <= 2000
        await bench.until(lambda: not bench.head.statistics().connections)
        assert bench.head.statistics().waiting_bytes == 0


async def test_chunked_bodies_and_expect() -> None:
    """A chunked message, and a client that waits for 100 before it sends its body."""
    async with running() as bench:
        client = await bench.connect()
        head = f"POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\n".encode()
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await client.answer()).status == 204
        client.send(head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await client.answer()).status == 100
        client.send(b"hi")
        assert (await client.answer()).status == 204
        assert [message.body for message in bench.router.messages] == [b"abcde", b"hi"]
        client.send(
            b"POST /no HTTP/1.1\r\n%sExpect: 100-continue\r\nContent-Length: 2\r\n\r\n" % HOST
        )
        assert (await client.answer()).status == 404
        assert await client.ended() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    """One at a time, whatever is sent ahead."""
    async with running() as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request(b"a") + request(b"b", path="/no") + request(b"c"))
        await bench.until(lambda: len(bench.router.pending) == 1)
        client.send(request(b"d"))
        bench.router.settle()
        await bench.until(lambda: len(bench.router.pending) == 1)
        bench.router.settle()
        await bench.until(lambda: len(bench.router.pending) == 1)
        bench.router.settle()
        statuses = [(await client.answer()).status for _ in range(4)]
        assert statuses == [204, 404, 204, 204]
        assert [message.body for message in bench.router.messages] == [b"a", b"c", b"d"]


async def test_http_1_0_and_close() -> None:
    """The connection ends or goes on as the client's version has it."""
    async with running() as bench:
        old = f"POST {EVENTS} HTTP/1.0\r\nContent-Length: 1\r\n".encode()
        client = await bench.connect()
        client.send(old + b"Connection: keep-alive\r\n\r\nx")
        assert (await client.answer()).headers["connection"] == "keep-alive"
        client.send(old + b"\r\nx")
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.ended() == b""
        client = await bench.connect()
        client.send(request(Connection="close"))
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.ended() == b""


async def test_a_client_that_ends_its_side_is_still_answered() -> None:
    """As `nc` does after its input."""
    async with running() as bench:
        bench.router.holding = True
        client = await bench.connect()
        client.send(request())
        client.writer.write_eof()
        await bench.until(lambda: len(bench.router.pending) == 1)
        bench.router.settle()
        assert (await client.answer()).status == 204
        assert await client.ended() == b""


async def test_many_clients_at_once() -> None:
    """Each gets its answers; more than allowed get 503 and no more."""
    async with running(connections_max=50) as bench:
        clients = [await bench.connect() for _ in range(50)]

        async def work(number: int) -> None:
            for turn in range(20):
                path = f"/devices/dev-{number}/messages/events"
                answer = await clients[number].post(b"%d" % turn, path=path)
                assert answer.status == 204

        await asyncio.gather(*(work(number) for number in range(50)))
        by_device: dict[str, list[bytes]] = {}
        for message in bench.router.messages:
            by_device.setdefault(message.device_id, []).append(message.body)
        assert len(by_device) == 50
        assert all(got == [b"%d" % turn for turn in range(20)] for got in by_device.values())
        extra = await bench.connect()
        assert (await extra.answer()).status == 503
        assert await extra.ended() == b""


async def test_slow_clients_are_ended() -> None:
    """No request, headers drop by drop, a body that stands still: each has its time."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        idle, drip, stuck, done = [await bench.connect() for _ in range(4)]
        drip.send(b"POST / HT")
        stuck.send(request(bytes(100))[:-98])
        assert (await done.post()).status == 204
        await bench.until(lambda: bench.head.statistics().waiting_bytes == 2)
        await clock.advance(9)
        drip.send(b"TP/1.1\r\nX: ")
        assert bench.head.statistics().connections == 4
        await clock.advance(3)
        assert (await drip.answer()).status == 408
        assert await idle.ended() == b""
        await clock.advance(20)
        assert (await stuck.answer()).status == 408
        assert bench.head.statistics().timed_out_total == 3
        assert bench.head.statistics().waiting_bytes == 0
        await clock.advance(60)
        assert await done.ended() == b""


async def test_a_slow_body_is_not_a_stuck_one() -> None:
    """A thin link may take minutes for a large message, as long as it moves."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await bench.connect()
        client.send(request(bytes(200_000))[:-200_000])
        for turn in range(20):
            client.send(b"x" * 10_000)
            await bench.until(
                lambda turn=turn: (
                    bench.head.statistics().waiting_bytes == 10_000 * (turn + 1)
                    or bool(bench.router.messages)
                )
            )
            await clock.advance(9)
        assert (await client.answer()).status == 204


async def test_a_client_that_does_not_read_is_ended() -> None:
    """Answers pile up to a bound, then nothing more is served, then it is cut off."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await bench.connect()
        client.writer.transport.pause_reading()
        sent = 0

        def served() -> int:
            return sum(bench.head.statistics().answers.values())

        # The kernel takes some megabytes of answers before the head sees that nobody reads.
        while served() == sent:
            client.send(request(b"", path="/no") * 1000)
            sent += 1000
            for _ in range(3000):
                await asyncio.sleep(0)
        assert bench.head.statistics().connections == 1
        before = served()
        for _ in range(65):
            await clock.advance(1)
        await bench.until(lambda: not bench.head.statistics().connections)
        assert served() == before
        assert bench.head.statistics().waiting_bytes == 0


async def test_passwords(tmp_path: Path) -> None:
    """Right, wrong, missing, for others within on_behalf and outside; until they are taken away."""
    file = tmp_path / "identities"

    def write(*entries: dict[str, object]) -> None:
        secret = str(PasswordHash.of(b"s3cret"))
        lines = [json.dumps({"password": secret, **entry}) for entry in entries]
        file.write_text("\n".join(lines), "utf-8")
        file.chmod(0o600)

    write({"id": "press-1"}, {"id": "hall-2", "on_behalf": ["line-*"]}, {"id": "x:y"})
    async with running(identities_file=file) as bench:
        client = await bench.connect()

        async def status(sender: str, *credentials: str) -> int:
            headers = {"Authorization": basic(*credentials)} if credentials else {}
            path = f"/devices/{sender}/messages/events"
            return (await client.post(path=path, **headers)).status

        assert await status("press-1") == 401
        assert await status("press-9") == 204
        assert await status("press-1", "press-1", "wrong") == 401
        assert await status("press-1", "press-1", "s3cret") == 204
        assert await status("press-1", "press-1", "s3cret") == 204
        assert await status("line-7", "hall-2", "s3cret") == 204
        assert await status("press-1", "hall-2", "s3cret") == 403
        assert await status("press-9", "press-9", "s3cret") == 401
        assert await status("x:y", "x:y", "s3cret") == 204
        answer = await client.post(Authorization="SharedAccessSignature sr=x")
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert await status("press-1", "press-1", "s3cret") == 204
        write({"id": "press-1", "disabled": True})
        bench.identities.apply(read_identity_list(file))
        assert await status("press-1", "press-1", "s3cret") == 401
        (loss,) = [each for each in bench.head.losses() if each.total]
        assert (loss.total, loss.example) == (
            1,
            "'hall-2' may not send for 'press-1'; its identity has no such on_behalf pattern",
        )
        assert len(bench.router.messages) == 6
        # Who has not signed in is nobody, whatever he claims.
        nobody = ("", 1, "not_authorized")
        assert bench.router.told == [
            *([nobody] * 2),
            ("hall-2", 1, "foreign_identity"),
            *([nobody] * 3),
        ]


async def test_signatures(tmp_path: Path) -> None:
    """A shared access signature opens its own identity until it expires."""
    key = SharedAccessKey(bytes(range(32)))
    file = tmp_path / "identities"
    file.write_text(json.dumps({"id": "press-1/cam", "keys": [key.to_text()]}), "utf-8")
    file.chmod(0o600)
    clock = ManualClock()
    async with running(identities_file=file, clock=clock) as bench:
        client = await bench.connect()

        async def status(authorization: str, sender: str = "press-1/modules/cam") -> int:
            path = f"/devices/{sender}/messages/events"
            return (await client.post(path=path, Authorization=authorization)).status

        now_s = clock.wall_ms() // 1000
        right = key.token("h/devices/press-1/modules/cam", now_s + 60 - CLOCK_TOLERANCE_S)
        assert await status(right) == 204
        assert await status(right) == 204
        assert await status(right, "press-1") == 403
        assert await status(SharedAccessKey(bytes(32)).token("h/devices/x", now_s)) == 401
        assert await status("SharedAccessSignature sr=x") == 401
        assert await status(right) == 204
        clock.step_wall(60_000)
        assert await status(right) == 401


async def test_a_name_is_recorded_only_of_a_client_that_has_signed_in(tmp_path: Path) -> None:
    """A body refused by its headers comes before the password is looked at."""
    file = tmp_path / "identities"
    secret = str(PasswordHash.of(b"s3cret"))
    file.write_text(json.dumps({"id": "press-1", "password": secret}), "utf-8")
    file.chmod(0o600)
    async with running(identities_file=file, message_bytes_max=1000) as bench:
        client = await bench.connect()
        right = basic("press-1", "s3cret")
        for authorization in (None, basic("press-1", "wrong"), right):
            headers = {"Authorization": authorization} if authorization else {}
            assert (await client.post(b"x" * 2000, **headers)).status == 413
        assert (await client.post(Authorization=right)).status == 204
        assert (await client.post(b"x" * 2000, Authorization=right)).status == 413
        assert (await client.post(b"x" * 2000, Authorization=basic("press-1", "no"))).status == 413
        told = [device for device, size, reason in bench.router.told]
        assert told == ["", "", "", "press-1", ""]
        assert {entry[1:] for entry in bench.router.told} == {(2000, "too_large")}


async def test_a_drain_answers_what_was_taken_and_takes_no_more() -> None:
    """Idle connections end, the one that waits for its commit is answered, new ones are refused."""
    async with running() as bench:
        bench.router.holding = True
        idle, busy, reading = [await bench.connect() for _ in range(3)]
        busy.send(request(b"taken"))
        reading.send(request(b"late")[:-2])
        await bench.until(lambda: len(bench.router.pending) == 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(bench.head.drain())
            assert await idle.ended() == b""
            reading.send(b"te")
            answer = await reading.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            bench.router.settle()
            answer = await busy.answer()
            assert (answer.status, answer.headers["connection"]) == (204, "close")
        assert [message.body for message in bench.router.messages] == [b"taken"]
        with pytest.raises(ConnectionRefusedError):
            await bench.connect()


async def test_what_keeps_it_from_starting() -> None:
    """A port in use, nobody who could sign in; nothing listens."""
    async with running() as bench:
        for options, word in (
            ({"port": bench.port}, "set http.port"),
            ({"host": "0.0.0.0"}, "no client could sign in"),
            ({"anonymous": False}, "no client could sign in"),
            ({"host": "203.0.113.1"}, "set http.host"),
        ):
            port = free_port()
            head = make_head(HttpSettings(**{"port": port, **options}))
            with pytest.raises(StartupError, match=word):
                await head.open()
            assert head.addresses == []
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)


async def test_https(tmp_path: Path) -> None:
    """A new certificate is used by new connections; open ones go on."""
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    tls = read_server_tls("http", *first.server(), None)
    async with running(tls=tls.context) as bench:
        for authority in (first, second):
            context = ssl.create_default_context(cafile=authority.certificate)
            reader, writer = await asyncio.open_connection("127.0.0.1", bench.port, ssl=context)
            writer.write(request(b"over tls"))
            assert (await reader.readline()) == b"HTTP/1.1 204 No Content\r\n"
            writer.close()
            if authority is first:
                tls = read_server_tls("http", *second.server(), None)
                await bench.head.renew_certificate(tls.context)


async def test_curl_is_served(tmp_path: Path) -> None:
    """A message from a file with Expect, and a batch, by curl."""
    body = tmp_path / "body"
    body.write_bytes(b"x" * 200_000)
    async with running() as bench:
        url = f"http://127.0.0.1:{bench.port}{EVENTS}"
        for arguments in (
            ["--data-binary", f"@{body}", "-H", "Expect: 100-continue", url],
            ["-d", '[{"body":"YQ=="}]', "-H", f"Content-Type: {BATCH}", url, url],
            ["-T", str(body), "-X", "POST", "-H", "Transfer-Encoding: chunked", url],
            ["--http2", "-d", "upgrade", url],
        ):
            process = await asyncio.create_subprocess_exec(
                "curl", "-sS", "-m", "10", "-w", "%{http_code} ", *arguments,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            out, _ = await process.communicate()
            assert set(out.split()) == {b"204"}
        sizes = [len(message.body) for message in bench.router.messages]
        assert sizes == [200_000, 1, 1, 200_000, 7]


@pytest.mark.parametrize("on_behalf", [True, False])
async def test_requests_that_have_been_here_before(tmp_path: Path, *, on_behalf: bool) -> None:
    """Of a client that may be a hub they are dropped and answered with 204; of others stored."""
    file = tmp_path / "identities"
    with changing(file) as identities:
        identities["hall-2"] = Identity(
            id="hall-2",
            password=PasswordHash.of(b"s3cret"),
            on_behalf=("*",) if on_behalf else (),
        )
    headers = {"Authorization": basic("hall-2", "s3cret")}
    path = "/devices/hall-2/messages/events"
    async with running(identities_file=file) as bench:
        client = await bench.connect()
        for passed in ("childhubwith", f"childhubwith.{STORE_ID}", "no mark"):
            client.send(request(b"one", path=path, edgehub_path=passed, **headers))
            assert (await client.answer()).status == 204
        marks = [message.properties.get("edgehub-path") for message in bench.router.messages]
        (loss,) = [each for each in bench.head.losses() if each.event == "http.loop_found"]
        if on_behalf:
            assert marks == [f"childhubwith.{STORE_ID}", STORE_ID]
            assert loss.example == "client hall-2: sent back a message of 'hall-2'"
            assert bench.router.told == [("hall-2", 3, "loop")]
        else:
            assert marks == [None] * 3
        assert bench.head.statistics().loops_total == loss.total == on_behalf


def make_head(settings: HttpSettings) -> HttpHead:
    """A head that is not open."""
    context = HttpContext(
        settings,
        clock=ManualClock(),
        submit=ScriptedRouter().submit,
        refused=ScriptedRouter().refused,
        identities=Identities(lambda: None),
        hub_path=HubPath(STORE_ID),
        methods=Methods(NoWays(), ManualClock(), no_owner),
    )
    return HttpHead(context)
