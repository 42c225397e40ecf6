"""What the largest input of a client costs: time in proportion to its size, milliseconds at most.

Each case is a parser with an input that is the worst for it. Four times the size may take about
four times the time, and the largest that is legal holds up the event loop for moments only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import count
from time import process_time
from typing import TYPE_CHECKING

import pytest
import zstandard

from edgehub.devices.identities import Identities
from edgehub.devices.identity_file import Identity
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import EdgeHubError
from edgehub.heads.http.forms import batch_messages, read_target
from edgehub.heads.http.sign_in import parse_basic
from edgehub.heads.mqtt.batch import RecordError, message_of
from edgehub.heads.mqtt.local.filter_tree import FilterTree
from edgehub.heads.mqtt.local.options import BRANCHES_MAX
from edgehub.http1.parser import Request, RequestParser
from edgehub.message import Message
from edgehub.mqtt.batch import RECORDS_MAX, build_batch, read_batch
from edgehub.mqtt.message_properties import read_message_properties
from edgehub.mqtt.property_bag import parse_bag
from edgehub.mqtt.server_decoder import Decoder
from edgehub.mqtt.server_packets import parse_subscribe, parse_unsubscribe
from edgehub.mqtt.topic_filter import covers, matches, overlaps
from edgehub.routes.chunks import Chunks
from edgehub.routes.content import read_body
from edgehub.routes.query import text, values
from edgehub.routes.query.body import NOT_READ, PARTS_MAX
from edgehub.routes.query.body import read_body as read_message_body
from edgehub.routes.query.codegen import compile_predicates
from edgehub.routes.query.parser import parse_condition
from edgehub.routes.tenant import DEFAULT_TENANT
from edgehub.web.body import json_body
from edgehub.web.request import ApiRequest
from edgehub.web.revisions import parse_if_match
from tests.support.entities import MapperBench

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], object]

K = 1024
RATIO_MAX = 8
"""For four times the size; quadratic work takes sixteen times as long."""

AT_ONCE_S = 0.04
"""Some milliseconds on a quiet machine, and room for a busy one."""

FLOOR_S = 0.000_5
"""Shorter times say nothing of a ratio."""

MODULES = b'{"status":"successful","currentSoftwareList":[{"modules":[%b]}]}'
TYPE = '"@type":"child-device",'
MAIN = "te/device/main//"
TARGET = read_target(b"/devices/d/messages/events", [])


def members(size: int, value: str = "1") -> str:
    """Members of a JSON object, as many as fit."""
    each = len(value) + 9
    return ",".join(f'"{number:05x}":{value}' for number in range(size // each))


def an_object(size: int, value: str = "1", first: str = "") -> str:
    """A JSON object with as many members as fit."""
    return "{" + first + members(size, value) + "}"


def web_body(document: str) -> Work:
    """The body of a request of the HTTP API; a long one is read beside the loop."""
    fields = {"content-type": "application/json"}
    request = ApiRequest(fields=fields, body=bytearray(document.encode()))
    return lambda: asyncio.run(json_body(request))


def a_route(condition: str) -> Work:
    """A route by the API."""
    route = f"FROM /messages/* WHERE {condition} INTO $upstream"
    return lambda: read_body(route, DEFAULT_TENANT)


def unzipped(records: bytes) -> Work:
    """A batch of a child, small on the wire."""
    payload = zstandard.ZstdCompressor().compress(b'{"edgehub_batch":1,"records":1}\n' + records)
    return lambda: list(read_batch(payload, bytes_max=2 * K * K))


def a_batch(size: int) -> Work:
    """A batch as a parent reads it: all records, all messages."""
    payload = build_batch([b'{"device":"d","body":"x"}'] * size, compress=True)

    def read() -> None:
        for record in read_batch(payload, bytes_max=2 * K * K):
            message_of(record, message_bytes_max=256 * K)

    return read


def a_record(size: int) -> Work:
    """One record with as many properties as fit."""
    record = {"device": "d", "body": "", "properties": json.loads(an_object(size, '""'))}

    def read() -> None:
        with contextlib.suppress(RecordError):
            message_of(record, message_bytes_max=256 * K)

    return read


def posted(document: str) -> Work:
    """A batch over HTTP."""
    body = document.encode()
    return lambda: list(batch_messages(TARGET, body, 256 * K, 0))


def read_requests(data: bytes) -> Work:
    """The head of HTTP parses what a client sends, as reads of the socket have it."""

    def read() -> None:
        parser = RequestParser(
            Request, header_bytes_max=16 * K, on_head=lambda _: None, on_piece=lambda _, __: None
        )
        for at in range(0, len(data), 2 * K):
            parser.feed(data[at : at + 2 * K])

    return read


def decoded(data: bytes) -> Work:
    """One slice of a client of MQTT."""
    connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"

    def read() -> None:
        decoder = Decoder(publish_bytes_max=256 * K)
        decoder.feed(connect, [])
        decoder.feed(data, [])

    return read


def mapped(topic: str, payload: Callable[[int], str | bytes]) -> Callable[[int], Work]:
    """A local message through the mapper, each time another one; `#` in its topic is a number."""
    numbers = count()

    def make(size: int) -> Work:
        bench = MapperBench()
        bench.child("known")
        content = payload(size)
        body = content.encode() if isinstance(content, str) else content

        def take() -> None:
            fresh = topic.replace("#", str(next(numbers)))
            bench.mapper.handle(fresh, body, bench.now)

        return take

    return make


def in_tree(size: int) -> Work:
    """A topic among filters of which each level is that name or a plus."""
    tree: FilterTree[int] = FilterTree()
    for client in range(size // 128):
        for bits in range(128):
            levels = "/".join("+" if bits >> level & 1 else "a" for level in range(7))
            tree.add(f"te/{levels}", client)
    return lambda: tree.match("te/" + "/".join("a" * 7))


def widest_tree(size: int) -> Work:
    """A topic among filters that branch as much as the clients of one hub may make them."""
    tree: FilterTree[int] = FilterTree()
    for bits in range(size):
        levels = "/".join("+" if bits >> level & 1 else "a" for level in range(12))
        topic_filter = f"te/{levels}" + "/+" * 50
        if tree.branches_with(topic_filter) > BRANCHES_MAX * size // 4096:
            return lambda: tree.match("te" + "/a" * 62)
        tree.add(topic_filter, bits)
    raise AssertionError


def spoken_for(size: int) -> Work:
    """A sender against patterns with stars that match in many ways."""
    password = PasswordHash.dummy()
    scope = Identity(id="g", password=password, on_behalf=("*a" * size + "b",)).scope()
    assert scope is not None
    return lambda: scope.match("a" * 257)


def compiled(size: int) -> Work:
    """The piece of code that a change of a route compiles at once."""
    written = " OR ".join(f"$body.a{number} = 1" for number in range(40))
    tree = parse_condition(written).expression
    conditions = [(slot, tree) for slot in range(size)]

    def work() -> None:
        chunks = Chunks((), "hub").changed(frozenset(), conditions)
        next(iter(chunks.compile()))

    return work


def a_condition(size: int) -> Work:
    """The costliest code that one condition may become."""
    tree = parse_condition(" OR ".join(f"$body.a{n} < {n}" for n in range(size))).expression
    return lambda: compile_predicates([(1, tree)], "hub")


def body_of_message(document: bytes) -> Work:
    """The body of a message, for conditions."""
    system: dict[str, str | None] = {
        "contentType": "application/json",
        "contentEncoding": "utf-8",
    }
    message = Message("d", None, "/messages/", {}, system, document)
    return lambda: read_message_body(message, [NOT_READ])


CASES: dict[str, tuple[Callable[[int], Work], int]] = {
    "web: members": (lambda n: web_body(an_object(n)), 256 * K),
    "web: the last member twice": (
        lambda n: web_body(an_object(n)[:-1] + f',"{n // 10 - 1:05x}":1}}'),
        256 * K,
    ),
    "web: nested": (lambda n: web_body("[" * n), 1024 * K),
    "web: If-Match": (lambda n: lambda: parse_if_match(",".join(['""'] * (n // 3))), 16 * K),
    "route: unknown members": (
        lambda n: (
            lambda: read_body(
                {**{f"rout{i}": 1 for i in range(n // 10)}, "route": "FROM /* INTO $upstream"},
                DEFAULT_TENANT,
            )
        ),
        256 * K,
    ),
    "route: one piece of code": (compiled, 60),
    "route: one condition": (a_condition, 106),
    "condition: index_of between characters": (
        lambda n: lambda: text.find("\u0141" * (n // 3) + "\U00010000", "\u4101" * (n // 9)),
        256 * K,
    ),
    "condition: lower": (lambda n: lambda: text.lower("\u00c9" * (n // 2)), 256 * K),
    "condition: upper": (lambda n: lambda: text.upper("\u00df" * (n // 2)), 256 * K),
    "condition: length": (
        lambda n: lambda: text.length("\u00df" * (n // 2) + "\U00010000"),
        256 * K,
    ),
    "condition: as_number": (lambda n: lambda: values.as_number("1," * (n // 2) + "x"), 256 * K),
    "condition: blanks of a number": (
        lambda n: lambda: values.as_number("1" + "\t" * n + "x"),
        256 * K,
    ),
    "condition: digits": (lambda n: lambda: values.as_number("1." + "3" * n), 256 * K),
    "topic filter: overlap": (lambda n: lambda: overlaps("+/" * (n // 2) + "#", "a/" * n), 4 * K),
    "topic filter: cover": (lambda n: lambda: covers("+/" * (n // 2) + "#", "a/" * n), 4 * K),
    "topic filter: match": (lambda n: lambda: matches("+/" * (n // 2) + "#", "a/" * n), 4 * K),
    "topic filter: tree": (in_tree, 128 * 128),
    "topic filter: the widest tree": (widest_tree, 4096),
    "subscribe": (lambda n: lambda: parse_subscribe(b"\0\1" + b"\0\1a\0" * (n // 4), 4), 96 * K),
    "unsubscribe": (lambda n: lambda: parse_unsubscribe(b"\0\1" + b"\0\1a" * (n // 3), 4), 96 * K),
    "mqtt: a slice of pings": (lambda n: decoded(b"\xc0\0" * (n // 2)), 4 * K),
    "property bag: items": (lambda n: lambda: parse_bag("a&" * (n // 2) + "b"), 64 * K),
    "property bag: escapes": (lambda n: lambda: parse_bag("a=" + "%41" * (n // 3)), 64 * K),
    "user properties": (
        lambda n: lambda: read_message_properties(b"\x26\0\1a\0\0" * (n // 6)),
        256 * K,
    ),
    "batch: empty lines": (lambda n: unzipped(b"\n" * n), 2 * K * K - 64),
    "batch: empty records": (lambda n: unzipped(b"{}\n" * (n // 3)), 2 * K * K - 64),
    "batch: messages": (a_batch, RECORDS_MAX),
    "batch: nested arrays": (
        lambda n: unzipped(b'{"device":"d","body":' + b"[[],[]]," * (n // 8) + b"}\n"),
        2 * K * K - 128,
    ),
    "batch: properties of a record": (a_record, 256 * K),
    "http: properties of a message": (
        lambda n: posted('[{"body":"","properties":' + an_object(n, '""') + "}]"),
        1024 * K,
    ),
    "http: messages": (lambda n: posted(json.dumps([{"body": "eA=="}] * n)), 1000),
    "http: nested arrays": (lambda n: posted("[" + "[[],[]]," * (n // 8) + "1]"), 1024 * K),
    "http: numbers": (lambda n: posted("[" + "1," * (n // 2) + "1]"), 1024 * K),
    "http: unknown members": (lambda n: posted(f"[{an_object(n)}]"), 1024 * K),
    "http: pieces of a body": (
        lambda n: read_requests(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"1\r\nx\r\n" * (n // 6)
        ),
        256 * K,
    ),
    "http: headers": (
        lambda n: read_requests(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (n // 5)),
        16 * K,
    ),
    "http: upgrades": (
        lambda n: read_requests(
            b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n" * (n // 52)
        ),
        64 * K,
    ),
    "http: colons of a name": (
        lambda n: (
            lambda: parse_basic(b"Basic " + b"Ojo6" * (n // 4), "d", Identities(lambda: None))
        ),
        16 * K,
    ),
    "on_behalf": (spoken_for, 120),
    "te: measurement": (mapped(f"{MAIN}/m/", an_object), 60 * K),
    "te: groups": (
        mapped(f"{MAIN}/m/", lambda n: an_object(n, '{"a":1}')),
        60 * K,
    ),
    "te: units": (
        mapped(f"{MAIN}/m/#/meta", lambda n: an_object(n, '{"unit":"a"}')),
        60 * K,
    ),
    "te: event": (mapped(f"{MAIN}/e/", an_object), 256 * K),
    "te: alarm": (mapped(f"{MAIN}/a/#", an_object), 60 * K),
    "te: twin": (mapped(f"{MAIN}/twin/#", an_object), 60 * K),
    "te: twin that is far too large": (
        mapped(f"{MAIN}/twin/#", an_object),
        256 * K,
    ),
    "te: registration": (
        mapped("te/device/#//", lambda n: an_object(n, first=TYPE)),
        60 * K,
    ),
    "te: registration with values": (
        mapped("te/device/#//", lambda n: an_object(10 * n, first=TYPE)),
        198,
    ),
    "te: software list": (
        mapped(
            f"{MAIN}/cmd/software_list/c8y-mapper-#",
            lambda n: MODULES % b",".join([b'{"name":"a"}'] * n),
        ),
        5000,
    ),
    "te: too long a software list": (
        mapped(
            f"{MAIN}/cmd/software_list/c8y-mapper-#",
            lambda n: MODULES % b",".join([b"{}"] * (n // 3)),
        ),
        256 * K,
    ),
    "c8y: operations": (
        mapped("c8y/devicecontrol/notifications", lambda n: b"{}\n" * (n // 3)),
        256 * K,
    ),
}

BESIDE: dict[str, tuple[Callable[[int], Work], int]] = {
    "characters that are none": (lambda n: a_route("@" * n), 32_000),
    "comments without an end": (lambda n: a_route("/*a" * (n // 3)), 32_000),
    "strings without an end": (lambda n: a_route('"\\q' * (n // 3)), 32_000),
    "comparisons": (lambda n: a_route(" OR ".join(["a = 'b'"] * (n // 12))), 16_000),
    "unknown functions": (lambda n: a_route(" OR ".join(["lengths(a) = 1"] * (n // 16))), 16_000),
    "parentheses": (lambda n: a_route("(" * (n // 2) + "true" + ")" * (n // 2)), 16_000),
    "steps into the body": (lambda n: a_route("$body." + "a." * (n // 2) + "b = 1"), 32_000),
}
"""Route texts, which are read in a thread where they are long."""


@pytest.mark.alone
@pytest.mark.parametrize("name", CASES)
def test_time_is_in_proportion_and_short(name: str) -> None:
    """Four times the input takes about four times the time, and the largest is short work."""
    make, largest = CASES[name]
    part_s, whole_s = _best(make(largest // 4), make(largest))
    assert whole_s < AT_ONCE_S
    assert whole_s < RATIO_MAX * max(part_s, FLOOR_S)


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b"1," * (128 * K) + b"NaN]",
        b"[" + b"1.2345," * (36 * K) + b"NaN]",
        b"[NaN" + (b"," + b"[" * 900 + b"]" * 900) * 145 + b"]",
        b"[" + b"[]," * (86 * K) + b"1]",
        b"[" + b"[]," * (PARTS_MAX - 4) + b"1" * 200 * K + b"]",
        b"[" + b"1.2345," * (PARTS_MAX - 4) + b"NaN]",
    ],
    ids=["not a number", "fractions", "deep", "arrays", "most arrays", "most elements"],
)
def test_a_body_is_read_in_few_milliseconds(document: bytes) -> None:
    """For conditions, however it is nested, and by whichever parser."""
    spent_s, _ = _best(body_of_message(document), body_of_message(document))
    assert spent_s < AT_ONCE_S / 3


@pytest.mark.parametrize("name", BESIDE)
def test_time_of_a_route_is_in_proportion(name: str) -> None:
    """A route text of four times the size takes about four times the time."""
    make, largest = BESIDE[name]
    part_s, whole_s = _best(make(largest // 4), make(largest))
    assert whole_s < RATIO_MAX * max(part_s, FLOOR_S)


def _best(part: Work, whole: Work) -> tuple[float, float]:
    # In turns, and the best of several: other work on the machine slows single runs only.
    times = [(_spent(part), _spent(whole)) for _ in range(5)]
    return min(part_s for part_s, _ in times), min(whole_s for _, whole_s in times)


def _spent(work: Work) -> float:
    began_s = process_time()
    with contextlib.suppress(EdgeHubError):
        work()
    return process_time() - began_s
