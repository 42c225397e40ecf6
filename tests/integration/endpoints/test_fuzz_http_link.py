"""Bytes of an HTTP peer over a real connection: an answer, or an error of the link."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given

from edgehub.endpoints.http_link import ANSWER_BYTES_MAX, Answer, HttpLink, HttpLinkError
from tests.support.fuzzing import cut, cuts, fuzzer, hostile

pytestmark = pytest.mark.integration

ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 503 L\r\nRetry-After: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"HTTP/1.0 422 No\r\n\r\nuntil the end",
]
PIECES = [
    *[
        b"\r\n",
        b"\n",
        b":",
        b"\0",
        b"\xff",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"0\r\n\r\n",
    ],
    *[
        b"Content-Length: 99999999999999999999\r\n",
        b"ffffffffffffffff\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
    ],
    b"HTTP/1.1 000 \r\n\r\n",
]


async def answered(chunks: list[bytes]) -> Answer | HttpLinkError:
    """Send a request to a peer that answers with chunks and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(
            lambda: HttpLink(b"POST / HTTP/1.1\r\nHost: h\r\n"), "127.0.0.1", port
        )
        try:
            return await link.request(b"")
        except HttpLinkError as error:
            return error
        finally:
            link.abort("the test is over")
            await closed.wait()


@fuzzer
@given(hostile(ANSWERS, PIECES), cuts)
def test_a_damaged_answer_is_an_answer_or_an_error_of_the_link(stream, places):
    """It ends with the connection; a status below 200 is none, nor is a body beyond the bound."""
    found = asyncio.run(answered(cut(stream, places)))
    if isinstance(found, HttpLinkError):
        assert str(found)
        return
    assert found.status >= 200
    assert len(found.body) <= ANSWER_BYTES_MAX
