"""Requests out of a stream of bytes, in one piece, in many, and out of junk."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.http1.parser import Request, RequestParser
from edgehub.http1.refusal import RequestError
from tests.support.http_head import request

HEADER_BYTES_MAX = 2000


def parser() -> RequestParser[Request]:
    """A parser that refuses nothing."""
    return RequestParser(
        Request,
        header_bytes_max=HEADER_BYTES_MAX,
        on_head=lambda _request: None,
        on_piece=lambda _request, _size: None,
    )


def shown(whole: Request) -> tuple[bytes, bytes, bytes]:
    """What matters of a request."""
    return whole.method, whole.url, bytes(whole.body)


STREAM = (
    request(b"abc", path="/a", X="1")
    + request(b"", path="/b", method="GET")
    + b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"3\r\nxyz\r\n1\r\n!\r\n0\r\nT: r\r\n\r\n"
    + request(b"last", path="/d")
)
EXPECTED = [(b"POST", b"/a", b"abc"), (b"GET", b"/b", b""), (b"POST", b"/c", b"xyz!")]
EXPECTED += [(b"POST", b"/d", b"last")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_the_cuts_of_a_stream_mean_nothing(cuts: list[int]) -> None:
    """The same requests come out however the bytes arrive."""
    reader = parser()
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(places):
        reader.feed(STREAM[start:end])
    assert [shown(whole) for whole in reader.ready] == EXPECTED
    assert reader.reading is None


def feed_all(pieces: list[bytes]) -> int:
    """Feed until the first problem; gives its status, 0 = there was none."""
    reader = parser()
    try:
        for piece in pieces:
            reader.feed(piece)
    except RequestError as problem:
        return problem.status
    return 0


@pytest.mark.parametrize(
    "data",
    [
        b"POST /a HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST /a HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"POST /a HTTP/1.1\r\nX: 1\r\n folded\r\n\r\n",
        b"POST /a HTTP/1.1\nX: 1\n\n",
        b"POST /a HTTP/1.1\r\nX : 1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ],
)
def test_what_smuggles_requests_ends_the_connection(data: bytes) -> None:
    """Ambiguous lengths, folded and bare lines, other protocols."""
    with pytest.raises(RequestError, match=r"HTTP/1\.1"):
        parser().feed(data)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"POST /a HTTP/1.1\r\n", *[b"X: 1\r\n"] * 1000],
        [b"POST /a HTTP/1.1\r\nX: ", *[b"x" * 100] * 100],
        [b"POST /", *[b"a" * 100] * 100],
        [b"POST /a HTTP/1.1\r\nX: " + b"x" * 5000 + b"\r\n\r\n"],
        [b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: ", *[b"x" * 100] * 100],
        [b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", *[b"x" * 100] * 100],
    ],
)
def test_headers_and_trailers_without_end_are_refused(pieces: list[bytes]) -> None:
    """Also one header that never ends, and lines of chunks."""
    assert feed_all(pieces) == 431


def test_an_offer_of_http_2_is_passed_over() -> None:
    """A POST with `Upgrade: h2c` is read as if it had not asked, whole or in two pieces."""
    data = request(
        b"abc", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AA", X="1"
    )
    for cut in (len(data), data.index(b"\r\n\r\n") + 4):
        reader = parser()
        reader.feed(data[:cut])
        reader.feed(data[cut:] + request(b"next"))
        assert [bytes(whole.body) for whole in reader.ready] == [b"abc", b"next"]
        assert (b"X", b"1") in reader.ready[0].headers
        assert reader.ready[0].keep_alive
    with pytest.raises(RequestError, match="no proxy"):
        parser().feed(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n")
