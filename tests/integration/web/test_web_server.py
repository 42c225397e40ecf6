"""The server of the HTTP API on loopback: what is whole is answered, what is no HTTP refused."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import structlog

from edgehub.clock import Clock, ManualClock, SystemClock
from edgehub.devices.tokens import Tokens
from edgehub.heads.binding import ListeningPort
from edgehub.settings import WebSettings
from edgehub.web.access import Access
from edgehub.web.answers import ApiAnswer
from edgehub.web.gate import ANSWER_TIMEOUT_S, Gate
from edgehub.web.server import WebServer
from tests.support.http_head import HttpClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from edgehub.web.request import ApiRequest

pytestmark = pytest.mark.integration

HEAD = b"GET /a HTTP/1.1\r\nHost: localhost\r\n"
GET = HEAD + b"\r\n"
LINES_MAX = 20
BODY_BYTES_MAX = 2**20
LARGE = 8 * 2**20
"""Bytes that no buffer between server and client holds."""

JUNK = [b"\x16\x03\x01\x02\x00\x01", b"\0" * 54, b"GET\r\n\r\n"]


class Bench:
    """A running server and what its handler was asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[str] = []
        self.clients: list[HttpClient] = []
        self.go = asyncio.Event()
        self.go.set()

    async def handle(self, request: ApiRequest) -> ApiAnswer:
        """ApiAnswer with the path, a large one at length, once the test lets it."""
        self.asked.append(request.path)
        await self.go.wait()
        return ApiAnswer(bytes(LARGE) if request.path == "/large" else request.path.encode())

    async def connect(self) -> HttpClient:
        """Open a connection."""
        client = HttpClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(clock: Clock | None = None) -> AsyncIterator[Bench]:
    """Run a server with one handler for every path."""
    port = ListeningPort("web", "the API", backlog=8)
    await port.open("127.0.0.1", 0)
    bench = Bench(port.addresses[0][1])
    clock = clock or SystemClock()
    routes = SimpleNamespace(find=lambda _request: bench.handle)
    gate = Gate(routes, Access(Tokens()), clock, body_bytes_max=BODY_BYTES_MAX)
    server = WebServer(gate, WebSettings(), clock)
    running = asyncio.create_task(server.run(port, None))
    try:
        yield bench
    finally:
        for client in bench.clients:
            client.writer.transport.abort()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("junk", JUNK)
async def test_junk_behind_requests_is_refused_after_their_answers(junk: bytes) -> None:
    """What is whole is answered in its order, then comes a 400 and the end."""
    async with serving() as bench:
        bench.go.clear()
        client = await bench.connect()
        client.send(GET + GET.replace(b"/a", b"/b") + junk)
        while not bench.asked:  # noqa: ASYNC110 - each turn of the loop paces it
            await asyncio.sleep(0)
        bench.go.set()
        answers = [await client.answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert [answer.body for answer in answers[:2]] == [b"/a", b"/b"]
        assert await client.ended() == b""


@pytest.mark.parametrize("before", [b"", GET])
async def test_junk_inside_a_body_is_refused(before: bytes) -> None:
    """A request whose body is malformed is refused itself, and no handler answers it."""
    async with serving() as bench:
        client = await bench.connect()
        client.send(before + HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\nzz\r\n")
        if before:
            assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.ended() == b""
        assert len(bench.asked) == (1 if before else 0)


async def test_junk_does_not_fill_the_log() -> None:
    """A hundred clients that send it cause no line of the log each."""
    with structlog.testing.capture_logs() as lines:
        async with serving() as bench:
            for _ in range(100):
                client = await bench.connect()
                client.send(GET + JUNK[1])
                await client.ended()
    assert len(lines) <= LINES_MAX
    assert not any("exc_info" in line for line in lines)


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    """A thousand of them in one write, with others served in between."""
    async with serving() as bench:
        client, other = await bench.connect(), await bench.connect()
        client.send(b"".join(GET.replace(b"/a", b"/%d" % number) for number in range(1000)))
        assert (await client.answer()).body == b"/0"
        other.send(GET.replace(b"/a", b"/other"))
        assert (await other.answer()).body == b"/other"
        assert bench.asked.index("/other") < 500
        for number in range(1, 1000):
            assert (await client.answer()).body == b"/%d" % number


async def test_a_large_body_waits_for_its_handler() -> None:
    """A body beyond the high water mark is read to its end, and the next request served."""
    async with serving() as bench:
        client = await bench.connect()
        head = HEAD + b"Content-Length: 900000\r\n\r\n"
        client.send(head + bytes(900_000) + GET.replace(b"/a", b"/b"))
        assert [(await client.answer()).body for _ in range(2)] == [b"/a", b"/b"]


async def test_a_body_may_have_all_the_bytes_of_the_bound() -> None:
    """One more is too many, announced or not."""
    chunk = b"%x\r\n%b\r\n" % (BODY_BYTES_MAX, bytes(BODY_BYTES_MAX))
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
    async with serving() as bench:
        client = await bench.connect()
        client.send(chunked + b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        client.send(chunked + b"1\r\nx\r\n0\r\n\r\n")
        assert (await client.answer()).status == 413


async def test_a_client_that_reads_again_has_time_for_the_rest() -> None:
    """The end of a wait is the end of its limit: the next request has times of its own."""
    clock = ManualClock()
    async with serving(clock) as bench:
        client = await bench.connect()
        client.send(GET.replace(b"/a", b"/large"))
        assert len((await client.answer()).body) == LARGE
        bench.go.clear()
        client.send(GET)
        while len(bench.asked) < 2:  # noqa: ASYNC110 - each turn of the loop paces it
            await asyncio.sleep(0)
        await clock.advance(ANSWER_TIMEOUT_S - 1)
        bench.go.set()
        assert (await client.answer()).body == b"/a"


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    """Its connection holds its answer no longer than a request may take."""
    clock = ManualClock()
    async with serving(clock) as bench:
        client = await bench.connect()
        client.send(GET.replace(b"/a", b"/large"))
        while not bench.asked:  # noqa: ASYNC110 - each turn of the loop paces it
            await asyncio.sleep(0)
        await clock.advance(WebSettings().request_timeout_s + 1)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()


async def test_a_handler_has_a_minute() -> None:
    """Then it is stopped and answered in its stead, and the next request is served."""
    clock = ManualClock()
    async with serving(clock) as bench:
        bench.go.clear()
        client = await bench.connect()
        client.send(GET)
        while not bench.asked:  # noqa: ASYNC110 - each turn of the loop paces it
            await asyncio.sleep(0)
        await clock.advance(ANSWER_TIMEOUT_S + 1)
        answer = await client.answer()
        assert (answer.status, answer.problem["code"]) == (503, "timed_out")
        bench.go.set()
        client.send(GET)
        assert (await client.answer()).status == 200


async def test_a_client_may_end_its_side_first() -> None:
    """What it has sent before is answered, and a request that is not whole is forgotten."""
    async with serving() as bench:
        client = await bench.connect()
        client.send(GET + GET + HEAD)
        client.writer.write_eof()
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        assert await client.ended() == b""
        assert len(bench.asked) == 2


async def test_an_upgrade_is_ignored() -> None:
    """Nothing here can be upgraded; each request is answered as any other."""
    async with serving() as bench:
        client = await bench.connect()
        client.send((HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n") * 3)
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]
        assert bench.asked == ["/a"] * 3


async def test_a_body_is_asked_for() -> None:
    """A client that waits for 100 gets it, unless its request is refused anyway."""
    async with serving() as bench:
        for length, status in ((1, b"100"), (BODY_BYTES_MAX + 1, b"413")):
            client = await bench.connect()
            client.send(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length)
            line = await client.reader.readline()
            assert line.split()[1] == status


async def test_parameters_are_bounded() -> None:
    """Thousands of parameters, which would be compared with one another, are refused."""
    async with serving() as bench:
        client = await bench.connect()
        client.send(GET.replace(b"/a", b"/a?" + b"a&" * 3000))
        assert (await client.answer()).status == 400
        assert bench.asked == []
