"""Paths, headers and batches of the HTTP head."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.heads.http import forms
from edgehub.heads.http.forms import (
    Target,
    batch_messages,
    check_form,
    read_target,
    single_message,
)
from edgehub.http1.refusal import RequestError
from edgehub.mqtt.batch import PLAIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

BYTES_MAX = 1000


@pytest.fixture(autouse=True, scope="module")
def _small_batches() -> Iterator[None]:
    """Let a batch have 5 messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "BATCH_MESSAGES_MAX", 5)
        yield


PRESS = Target("press-1", None, "press-1")
CAM = Target("gw", "cam", "gw/cam")
NOW_MS = 1_790_000_000_000


def single(body: bytes = b"x", target: Target = PRESS, **headers: str) -> Any:
    """Build a message; `_` in names of headers stands for `-`."""
    fields = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return single_message(target, fields, body, BYTES_MAX, NOW_MS)


def batch(*entries: Any) -> Any:
    """Build the messages of a batch."""
    return list(batch_messages(PRESS, json.dumps(entries).encode(), BYTES_MAX, NOW_MS))


@pytest.mark.parametrize(
    ("url", "sender"),
    [
        (b"/devices/press-1/messages/events?api-version=2020-03-13", "press-1"),
        (b"/devices/press-1/messages/events", "press-1"),
        (b"/devices/press-1/messages/events/", "press-1"),
        (b"/devices/gw/modules/cam/messages/events?x", "gw/cam"),
        (b"/devices/a%3Ab%25/messages/events", "a:b%"),
        (b"http://hub:8080/devices/press-1/messages/events", "press-1"),
    ],
)
def test_a_path_names_the_sender(url: bytes, sender: str) -> None:
    """Device and module forms, encoded ids, the form of proxies."""
    assert read_target(url, []).sender == sender


@pytest.mark.parametrize(
    "url",
    [
        b"/",
        b"",
        b"*",
        b"/devices/press-1/messages/devicebound",
        b"/devices/press-1/modules/cam/messages",
        b"/device/press-1/messages/events",
        b"/devices/gw/module/cam/messages/events",
        b"//devices/press-1/messages/events",
        b"/twins/press-1",
    ],
)
def test_other_paths_are_not_found(url: bytes) -> None:
    """404, with the paths that there are."""
    with pytest.raises(RequestError) as caught:
        read_target(url, [])
    assert caught.value.status == 404
    assert "/devices/<device>/messages/events" in caught.value.detail


@pytest.mark.parametrize("device", [b"", b"a%20b", b"a%2Fb", b"%ff", b"a" * 129, b"a%00"])
def test_ids_that_are_none_are_refused(device: bytes) -> None:
    """400 with the rule, not 404: the path is right."""
    with pytest.raises(RequestError, match="1 to 128") as caught:
        read_target(b"/devices/" + device + b"/messages/events", [])
    assert caught.value.status == 400


def test_headers_become_properties() -> None:
    """Application properties keep their case, system properties get the names of conditions."""
    message = single(
        b'{"a": 1}',
        iothub_app_Kind="alarm",
        IoTHub_App_note="grün",
        iothub_app_empty="",
        IotHub_MessageId="m-1",
        iothub_correlationid="c-1",
        iothub_contenttype="application/json",
        iothub_contentencoding="utf-8",
        Content_Type="text/plain",
        iothub_interface_id="i",
        Accept="*/*",
    )
    assert message.properties == {"Kind": "alarm", "note": "grün", "empty": ""}
    assert message.system == {
        "messageId": "m-1",
        "cid": "c-1",
        "contentType": "application/json",
        "contentEncoding": "utf-8",
        "iothub-interface-id": "i",
    }
    assert (message.device_id, message.module_id, message.source) == ("press-1", None, "/messages/")
    assert message.body == b'{"a": 1}'


def test_a_module_names_its_output() -> None:
    """The output becomes part of the message source."""
    message = single(target=CAM, iothub_outputname="alerts")
    assert message.source == "/messages/modules/cam/outputs/alerts/"
    assert message.output == "alerts"


@pytest.mark.parametrize(
    ("headers", "kind", "encoding"),
    [
        ({}, None, None),
        ({"Content_Type": "application/json"}, "application/json", "utf-8"),
        ({"Content_Type": "Application/JSON; Charset=UTF-16"}, "application/json", "utf-16"),
        ({"Content_Type": "text/csv"}, "text/csv", None),
        ({"Content_Type": "text/csv; charset=latin1"}, "text/csv", "latin1"),
        ({"Content_Encoding": "gzip"}, None, "gzip"),
        ({"Content_Encoding": "identity"}, None, None),
        ({"iothub_contenttype": "application/json"}, "application/json", None),
    ],
)
def test_content_type_and_encoding(
    headers: dict[str, str], kind: str | None, encoding: str | None
) -> None:
    """HTTP's own headers count where the dialect's are absent; JSON is UTF-8."""
    system = single(**headers).system
    assert (system.get("contentType"), system.get("contentEncoding")) == (kind, encoding)


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"iothub_mesageid": "1"}, "did you mean iothub-messageid"),
        ({"iothub_x" + "y" * 100_000: "1"}, "unknown name"),
        ({"iothub_app_": "1"}, "without a name"),
        ({"iothub_expiry": "soon"}, "no time such as"),
        ({"iothub_app_big": "x" * 1000}, "at most 1000"),
    ],
)
def test_headers_that_are_wrong(headers: dict[str, str], word: str) -> None:
    """Named, with a hint; nothing is passed over in silence."""
    with pytest.raises(RequestError, match=word):
        single(**headers)


def test_a_header_that_is_no_utf8() -> None:
    """Bytes without a meaning are refused."""
    with pytest.raises(RequestError, match="not UTF-8"):
        single_message(PRESS, [(b"iothub-app-a", b"\xff")], b"", BYTES_MAX, NOW_MS)


@pytest.mark.parametrize(
    ("text", "expiry_ms"),
    [
        ("2026-09-21T14:13:30Z", 10_000),
        ("2026-09-21T16:13:30+02:00", 10_000),
        ("2026-09-21T14:13:30", 10_000),
        ("2001-01-01T00:00:00Z", 1),
    ],
)
def test_an_expiry_shortens_the_time_to_live(text: str, expiry_ms: int) -> None:
    """Counted from now; what is late already is as good as over."""
    message = single(iothub_expiry=text)
    assert message.expiry_ms == expiry_ms
    assert message.system["absolute-expiry-time"] == text


def test_forms_that_are_not_taken() -> None:
    """A web form, a batch that is compressed or in another charset."""
    kind = b"application/vnd.microsoft.iothub.json"
    assert check_form([(b"content-type", kind + b"; charset=utf-8")])
    assert not check_form([(b"content-type", b"application/json")])
    for headers in (
        [(b"Content-Type", b"multipart/form-data; boundary=x")],
        [(b"Content-Type", kind + b";charset=utf-16")],
        [(b"Content-Type", kind), (b"Content-Encoding", b"gzip")],
    ):
        with pytest.raises(RequestError) as caught:
            check_form(headers)
        assert caught.value.status == 415


def test_a_batch_in_the_form_of_the_sdks() -> None:
    """Base64 unless said otherwise; names with and without the prefix; null has no value."""
    first, second, third = batch(
        {"body": "YQ==", "properties": {"iothub-app-Kind": "x", "iothub-messageid": "7"}},
        {"body": "grün", "base64Encoded": False, "properties": {"plain": "y", "none": None}},
        {"body": "", "base64Encoded": True},
    )
    assert (first.body, first.properties, first.system) == (b"a", {"Kind": "x"}, {"messageId": "7"})
    assert (second.body.decode(), second.properties) == ("grün", {"plain": "y", "none": None})
    assert (third.body, third.properties) == (b"", {})


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (1, "not an object"),
        ({}, "body: missing"),
        ({"body": {"a": 1}}, "body: missing, or not a text"),
        ({"body": "hello"}, "not base64"),
        ({"body": "", "base64Encoded": "no"}, "neither true nor false"),
        ({"body": "", "base64encoded": False}, "did you mean base64Encoded"),
        ({"body": "", "properties": []}, "not an object"),
        ({"body": "", "properties": {"a": 1}}, "neither a text nor null"),
        ({"body": "", "properties": {"": "x"}}, "without a name"),
        ({"body": "x" * 1001, "base64Encoded": False}, "at most 1000"),
    ],
)
def test_a_wrong_entry_is_named_by_its_index(entry: Any, word: str) -> None:
    """One wrong entry refuses the batch, and its place is told."""
    with pytest.raises(RequestError, match=word) as caught:
        batch({"body": ""}, entry, {"body": 1})
    assert caught.value.members["index"] == 1
    assert json.loads(caught.value.document())["index"] == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (b"[]", 400),
        (b"[NaN]", 400),
        (b'["\\ud800"]', 400),
        (b"[" * 5000, 400),
        (b"[" + b"1," * 5 + b"1]", 413),
    ],
)
def test_what_is_no_batch(body: bytes, status: int) -> None:
    """No JSON, no array, nothing in it, too much in it."""
    with pytest.raises(RequestError) as caught:
        list(batch_messages(PRESS, body, BYTES_MAX, NOW_MS))
    assert caught.value.status == status


def check(problem: RequestError, allowed: set[int]) -> None:
    """A problem has one of the statuses and is a document."""
    assert problem.status in allowed
    assert orjson.loads(problem.document())["status"] == problem.status


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ENTRY = st.fixed_dictionaries(
    {"body": st.text() | JSON},
    optional={
        "base64Encoded": st.booleans() | JSON,
        "properties": st.dictionaries(st.text(), st.text() | st.none()) | JSON,
    },
)


@given(st.lists(ENTRY | JSON).map(lambda value: json.dumps(value).encode()) | st.binary())
def test_any_batch_gives_messages_that_can_be_stored_or_a_problem(body: bytes) -> None:
    """Whatever a client sends: valid texts within the limits, or a refusal in JSON."""
    try:
        messages = list(batch_messages(PRESS, body, BYTES_MAX, NOW_MS))
    except RequestError as problem:
        check(problem, {400, 413})
        return
    for message in messages:
        orjson.dumps([message.source, message.properties, message.system])
        assert len(message.body) <= BYTES_MAX


TEXTS = st.fixed_dictionaries(
    {"body": st.text()},
    optional={
        "base64Encoded": st.just(value=False),
        "properties": st.dictionaries(st.text(), st.text() | st.none()),
    },
)


@given(st.lists(TEXTS | ENTRY, min_size=1, max_size=6), st.booleans())
def test_a_long_batch_is_read_as_a_short_one(entries: list[Any], escaped: bool) -> None:
    """Read entry by entry, it gives the same messages, and what is refused is the same."""
    short = json.dumps(entries, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    long = b"[" + b" " * PLAIN_BYTES + short[1:]
    assert taken(long) == taken(short)


def taken(body: bytes) -> list[Any] | None:
    """Return what the messages of a batch hold, None = it is refused."""
    try:
        messages = list(batch_messages(PRESS, body, BYTES_MAX, NOW_MS))
    except RequestError:
        return None
    return [(message.body, message.properties, message.system) for message in messages]


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (b'{"body":""}', "message 1: not an object of base64Encoded, body, properties"),
        (b'{"body":""}] x', "bytes after its end"),
        (b'{"body":}]', "message 1: unexpected"),
        (b'{"body":""},]', "message 2: not an object"),
        (b'{"properties":{"a":[]}}]', "message 1: not an object"),
        (b'{"properties":{' + b'"":"",' * 1_100 + b'"a":""}}]', "or with too many members"),
        (b"[[]]]", "message 1: not an object"),
        (b'{"body":""}' + b',{"body":""}' * 5 + b"]", "more than 5 messages"),
    ],
)
def test_a_long_batch_that_is_none(end: bytes, word: str) -> None:
    """What is wrong is told with its place, before much is parsed."""
    body = b'[{"body":""},' + b" " * PLAIN_BYTES + end
    with pytest.raises(RequestError, match=word):
        list(batch_messages(PRESS, body, BYTES_MAX, NOW_MS))
    with pytest.raises(RequestError, match="a batch is an array"):
        list(batch_messages(PRESS, b" " * PLAIN_BYTES + b"{}", BYTES_MAX, NOW_MS))


@given(
    st.lists(
        st.tuples(st.from_regex(rb"(?i)(iothub-(app-)?)?[a-z-]{0,12}", fullmatch=True), st.binary())
    ),
    st.binary(),
)
def test_any_headers_give_a_message_that_can_be_stored_or_a_problem(
    headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Whatever stands in the headers."""
    try:
        message = single_message(PRESS, headers, body, BYTES_MAX, NOW_MS)
    except RequestError as problem:
        check(problem, {400, 413})
        return
    orjson.dumps([message.source, message.properties, message.system])
    assert message.body == body


@given(st.binary())
def test_any_target_is_a_sender_or_a_problem(url: bytes) -> None:
    """Whatever stands in the request line."""
    try:
        target = read_target(url, [])
    except RequestError as problem:
        check(problem, {400, 404})
        return
    assert "/" not in target.device_id


@given(st.binary(max_size=100))
def test_a_body_survives_base64(body: bytes) -> None:
    """What was encoded comes out again."""
    (message,) = batch({"body": base64.b64encode(body).decode()})
    assert message.body == body


@pytest.mark.parametrize("name", ["$.ct", "$.cdid", "$.CMID", "mqtt-retain", "iothub-MessageType"])
def test_names_that_hubs_write_are_refused(name: str) -> None:
    """In a header and in a batch: a peer would take them for more than a property."""
    with pytest.raises(RequestError, match="only hubs write it") as header:
        single(**{f"iothub_app_{name}": "x"})
    assert header.value.status == 400
    for key in (name, f"iothub-app-{name}"):
        with pytest.raises(RequestError, match="only hubs write it"):
            batch({"body": "", "properties": {key: "x"}})
