"""What clients of the HTTP head send: any bytes are requests or a problem, however cut."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.devices.identities import Identities
from edgehub.devices.ids import is_device_id
from edgehub.heads.http import forms
from edgehub.heads.http.forms import (
    Target,
    batch_messages,
    check_form,
    read_target,
    single_message,
)
from edgehub.heads.http.sign_in import parse_basic
from edgehub.http1.parser import Request, RequestParser
from edgehub.http1.refusal import RequestError
from tests.support.fuzzing import JSON_PIECES, bounded, cut, cuts, fuzzer, hostile
from tests.support.http_head import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HEADER_BYTES_MAX = 100_000
BYTES_MAX = 1_000


@pytest.fixture(autouse=True, scope="module")
def _small_batches() -> Iterator[None]:
    """Let a batch have 20 messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "BATCH_MESSAGES_MAX", 20)
        yield


PRESS = Target("press-1", None, "press-1")
NOW_MS = 1_790_000_000_000

CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nxyz\r\n1;a=b\r\n!\r\n0\r\nT: r\r\n\r\n"
)
UPGRADE = request(b"abc", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AA")
STREAMS = [
    request(b"abc", path="/a", X="1") + CHUNKED + request(b"last", path="/d"),
    request(b"", path="/b", method="GET", Connection="close") + request(b"x"),
    UPGRADE + request(b"next"),
    b"POST /old HTTP/1.0\r\nContent-Length: 2\r\n\r\nab",
    CHUNKED,
]
PIECES = [
    *[b"\r\n", b"\r\n\r\n", b"\n", b"\r", b":", b" ", b"\0", b"\xff", b"HTTP/1.1", b"HTTP/2.0"],
    *[b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n", b"CONNECT ", b"0\r\n\r\n"],
    *[
        b"Content-Length: 99999999999999999999\r\n",
        b"ffffffffffffffff\r\n",
        b"Expect: 100-continue\r\n",
    ],
    b"X: y\r\n" * 50,
]


def parse(chunks: Sequence[bytes]) -> tuple[list[object], int]:
    """Feed chunks; returns the whole requests, and the status of the problem, 0 = there is none."""
    reader = RequestParser(
        Request,
        header_bytes_max=HEADER_BYTES_MAX,
        on_head=lambda _request: None,
        on_piece=lambda _request, _size: None,
    )
    status = 0
    try:
        for chunk in chunks:
            reader.feed(chunk)
    except RequestError as problem:
        status = problem.status
    whole = [
        (each.method, each.url, tuple(each.headers), bytes(each.body), each.keep_alive)
        for each in reader.ready
    ]
    return whole, status


@fuzzer
@given(hostile(STREAMS, PIECES), cuts)
def test_a_damaged_stream_is_read_the_same_however_it_is_cut(stream, places):
    """The same whole requests, then the same problem."""
    found = bounded(lambda: parse([stream]))
    assert found[1] in {0, 400, 405, 431}
    assert bounded(lambda: parse(cut(stream, places))) == found


def asked(call: Callable[[], object], allowed: set[int]) -> Any:
    """Return what a call gives, None = a problem, which is a document with an allowed status."""
    found = bounded(call, RequestError)
    if not isinstance(found, RequestError):
        return found
    assert found.status in allowed
    assert orjson.loads(found.document())["status"] == found.status
    return None


BATCHES = [
    b'[{"body":"x","properties":{"kind":"alarm","n":null}}]',
    b'[{"body":"eA==","base64Encoded":true},{"body":"y"},{"body":""}]',
    b'[{"body":"x","properties":{"iothub-messageid":"1","iothub-expiry":"2030-01-01T00:00:00Z"}}]',
]


@fuzzer
@given(hostile(BATCHES, JSON_PIECES))
def test_a_damaged_batch_is_messages_or_a_problem(body):
    """All of them within the limits."""
    messages = asked(lambda: list(batch_messages(PRESS, body, BYTES_MAX, NOW_MS)), {400, 413})
    for message in messages or []:
        orjson.dumps([message.source, message.properties, message.system])
        assert len(message.body) <= BYTES_MAX


HEADERS = [
    b"content-type: application/json;charset=utf-8",
    b"content-type: application/vnd.microsoft.iothub.json",
    b"content-encoding: identity",
    b"iothub-app-kind: alarm",
    b"iothub-messageid: 1",
    b"iothub-correlationid: 2",
    b"iothub-expiry: 2030-01-01T00:00:00Z",
    b"iothub-expiry: 2030-01-01T00:00:00.123456+23:59",
    b"authorization: Basic cHJlc3MtMTpwYXNz",
]


@fuzzer
@given(st.lists(hostile(HEADERS, [b"9" * 5_000, b"%00", b"%ff", b"\xc3\xa9"]), max_size=4))
def test_damaged_headers_make_a_message_or_a_problem(lines):
    """Whatever the parser lets through: a message that can be stored, or a refusal."""
    head = b"\r\n".join([b"GET / HTTP/1.1", b"Host: hub", *lines])
    for _, _, headers, _, _ in parse([head + b"\r\n\r\n"])[0]:
        asked(partial(check_form, headers), {415})
        message = asked(
            partial(single_message, PRESS, headers, b"x", BYTES_MAX, NOW_MS), {400, 413}
        )
        if message is not None:
            orjson.dumps([message.source, message.properties, message.system])


TARGETS = [
    b"/devices/press-1/messages/events?api-version=2020-03-13",
    b"/devices/gw/modules/cam/messages/events/",
    b"http://hub:8080/devices/a%3Ab%25/messages/events",
]


@fuzzer
@given(hostile(TARGETS, [b"%2f", b"%2F", b"%00", b"%", b"/", b"?", b"#", b"..", b"://"]))
def test_a_damaged_target_names_a_sender_or_is_a_problem(url):
    """No id of it holds what MQTT treats specially."""
    target = asked(lambda: read_target(url, []), {400, 404})
    if target is not None:
        assert is_device_id(target.device_id)
        assert target.module_id is None or is_device_id(target.module_id)


@fuzzer
@given(hostile([b"Basic cHJlc3MtMTpwYXNz", b"basic Z3cvY2FtOmE6Yg==", b"Bearer x.y"]))
def test_damaged_credentials_are_read_or_a_problem(authorization):
    """An id and a password, or 401."""
    identities = Identities(lambda: None)
    found = asked(lambda: parse_basic(authorization, "press-1", identities), {401})
    assert found is None or isinstance(found[1], bytes)
