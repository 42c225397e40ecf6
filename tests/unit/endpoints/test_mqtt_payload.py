"""What PUBLISHes carry: batches of rows, how they are grouped, halved and counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.endpoints.mqtt_payload import BatchedRows, BatchTopic
from edgehub.endpoints.mqtt_topic import TopicTemplate
from edgehub.endpoints.record import encode_record
from edgehub.message import UPSTREAM, FailureKind, Message, Row, SendResult
from edgehub.mqtt.batch import BATCH_TYPE, read_batch
from edgehub.mqtt.packets import LEVEL_3_1_1, Publish
from edgehub.mqtt.server_decoder import Decoder
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from edgehub.mqtt.packets import Packet

BIG = 2**20


class Packer:
    """Payloads, and what they refuse."""

    def __init__(self, *, topic: str | None = None, compress: bool = True, **limits: Any) -> None:
        topics = (
            BatchTopic("gw-7", compress=compress)
            if topic is None
            else TopicTemplate(topic, endpoint_id=UPSTREAM, key="topic")
        )
        bounds = {"rows_max": 100, "bytes_max": 65_536, "packet_bytes_max": None, **limits}
        self.payloads = BatchedRows(topics, lambda ms: ms, compress=compress, **bounds)
        self.refused: dict[int, SendResult] = {}

    def pack(self, *rows: Row) -> list[tuple[list[int], bytes, bytes]]:
        """Return offsets, topic and body of each payload."""
        packed = self.payloads.pack(rows, self._refuse)
        return [
            ([row.offset for row in group], *_read(start, rest)) for group, start, rest, _ in packed
        ]

    def offsets(self, *rows: Row) -> list[list[int]]:
        """Return the offsets of each payload."""
        return [offsets for offsets, _, _ in self.pack(*rows)]

    def _refuse(self, row: Row, result: SendResult) -> None:
        assert row.offset not in self.refused
        self.refused[row.offset] = result


def _read(start: bytes, rest: bytes) -> tuple[bytes, bytes]:
    """Return topic and body of a PUBLISH of MQTT 3.1.1."""
    packets: list[Packet] = []
    decoder = Decoder(publish_bytes_max=2**20)
    decoder.level = LEVEL_3_1_1
    decoder.feed(start + b"\0\1" + rest, packets)
    (packet,) = packets
    assert isinstance(packet, Publish)
    return packet.topic, packet.body or b""


def _rows(count: int, **values: Any) -> list[Row]:
    return [a_row(number, **values) for number in range(count)]


def test_rows_of_many_devices_share_a_payload_of_the_hubs_own_topic() -> None:
    """The topic says content type and encoding; each record who sent it, when, and what."""
    packer = Packer()
    row = a_row(7, device="press-1", module="cam", properties={"kind": "alarm"}, body=b"\xff\x00")
    row.message.system.update({"outputName": "alerts", "contentType": "x/y", "unknown": "z"})
    ((offsets, topic, body),) = packer.pack(a_row(6, body="ä".encode()), row)
    assert offsets == [6, 7]
    assert topic == (
        b"devices/gw-7/messages/events/%24.ct=application%2Fvnd.edgehub.batch%2Bjsonl"
        b"&%24.ce=zstd&%24.cdid=gw-7"
    )
    assert list(read_batch(body, bytes_max=BIG)) == [
        {"id": "m6", "device": "dev-1", "enqueued": "1970-01-01T00:00:00.000Z", "body": "ä"},
        {
            "id": "m7",
            "device": "press-1",
            "module": "cam",
            "enqueued": "1970-01-01T00:00:00.000Z",
            "properties": {"kind": "alarm"},
            "system": {"outputName": "alerts", "contentType": "x/y"},
            "body_base64": "/wA=",
        },
    ]


def test_a_module_signs_in_with_two_ids() -> None:
    """A client id of device and module gives the topic of the module."""
    topic = BatchTopic("gw-7/hub", compress=False).topic(a_row(1))
    assert topic.startswith(b"devices/gw-7/modules/hub/messages/events/")
    assert b"zstd" not in topic


def test_payloads_end_at_rows_and_bytes() -> None:
    """Neither bound is passed; a row larger than the bound goes alone."""
    assert Packer(rows_max=3).offsets(*_rows(7)) == [[0, 1, 2], [3, 4, 5], [6]]
    sizes = [400, 400, 400, 3000, 400]
    rows = [a_row(number, body=b"x" * size) for number, size in enumerate(sizes)]
    assert Packer(bytes_max=1024).offsets(*rows) == [[0, 1], [2], [3], [4]]


def test_rows_of_one_topic_share_payloads_and_no_sender_is_overtaken() -> None:
    """A template: a row that must not pass an earlier one of its sender begins another payload."""
    packer = Packer(topic="site/{property:kind}")
    kinds = ["a", "b", "a", "a", "b"]
    senders = ["p", "p", "p", "q", "q"]
    rows = [
        a_row(number, device=sender, properties={"kind": kind})
        for number, (kind, sender) in enumerate(zip(kinds, senders, strict=True))
    ]
    packed = packer.pack(*rows)
    assert [(offsets, topic) for offsets, topic, _ in packed] == [
        ([0], b"site/a"),
        ([1], b"site/b"),
        ([2, 3], b"site/a"),
        ([4], b"site/b"),
    ]


def test_a_packet_that_is_too_large_is_halved_down_to_the_row() -> None:
    """Only the row that is too large by itself is refused; the others go in smaller payloads."""
    packer = Packer(compress=False, packet_bytes_max=1000)
    rows = [a_row(number, body=b"x" * (2000 if number == 5 else 200)) for number in range(8)]
    offsets = packer.offsets(*rows)
    assert [offset for group in offsets for offset in group] == [0, 1, 2, 3, 4, 6, 7]
    assert len(offsets[0]) > 1
    assert {number: result.kind for number, result in packer.refused.items()} == {
        5: FailureKind.TOO_LARGE
    }
    assert "the peer takes 1000" in packer.refused[5].reason


def test_a_row_without_a_topic_is_refused_alone() -> None:
    """A topic that is too long ends that row, not the payload."""
    packer = Packer(topic="site/{property:kind}")
    rows = [a_row(1, properties={"kind": "k" * 70_000}), a_row(2, properties={"kind": "a"})]
    assert packer.offsets(*rows) == [[2]]
    assert packer.refused[1].kind is FailureKind.TOO_LARGE


def test_closes_halve_the_payloads_and_confirmations_bring_them_back() -> None:
    """Down to one row after a few closes, up again as fast."""
    packer = Packer(rows_max=8)
    sizes = []
    for _ in range(4):
        packer.payloads.closed()
        sizes.append(len(packer.offsets(*_rows(8))[0]))
    assert sizes == [4, 2, 1, 1]
    for _ in range(3):
        packer.payloads.confirmed()
    assert packer.offsets(*_rows(8)) == [list(range(8))]
    packer.payloads.confirmed()
    assert packer.offsets(*_rows(9)) == [list(range(8)), [8]]


def test_the_bytes_of_a_row_are_its_share_of_the_packet() -> None:
    """What rows are said to take comes close to what they take, once some have gone."""
    packer = Packer()

    def rows(at: int) -> list[Row]:
        return [
            a_row(at + number, device=f"press-{number % 20}", body=_telemetry(at + number))
            for number in range(40)
        ]

    for turn in range(20):
        packer.pack(*rows(100 * turn))
    said = sum(packer.payloads.wire_bytes(rows(5000)))
    ((_, _, body),) = packer.pack(*rows(5000))
    assert said == pytest.approx(len(body), rel=0.2)


def test_telemetry_takes_a_fifth_on_the_link() -> None:
    """Forty rows of typical telemetry, against as many PUBLISHes."""
    packer = Packer()
    rows = [a_row(n, device=f"press-{n % 20}", body=_telemetry(n)) for n in range(40)]
    ((_, topic, body),) = packer.pack(*rows)
    singly = sum(len(row.message.body) + 60 for row in rows)
    assert len(topic) + len(body) < singly / 4


def _telemetry(number: int) -> bytes:
    values = {
        "ts": 1_764_300_000 + number,
        "temperature": 20 + number * 37 % 100 / 10,
        "pressure": 1000 + number * 53 % 200 / 10,
        "rpm": 1000 + number * 7919 % 1000,
        "state": ("run", "idle", "stop")[number * 31 % 3],
    }
    return json.dumps(values).encode()


def test_a_message_without_an_id_keeps_its_place() -> None:
    """Records carry the hub's id of a message, which no two have."""
    row = Row(1, Message("d", None, "/messages/", {}, {}, b"", message_id="h-1"), 0, 10, ("r",), 64)
    ((_, _, body),) = Packer(compress=False).pack(row)
    assert next(read_batch(body, bytes_max=BIG))["id"] == "h-1"


def test_rows_sent_alone_say_little_about_the_ones_that_share_payloads() -> None:
    """What a row is counted as follows the bytes of the last payloads, not their number."""
    packer = Packer()
    for start in range(0, 1000, 100):
        packer.pack(
            *[a_row(number, body=_telemetry(number)) for number in range(start, start + 99)]
        )
    row = a_row(2000, body=_telemetry(2000))
    (shared,) = packer.payloads.wire_bytes([row])
    for number in range(3000, 3004):
        packer.pack(a_row(number, body=_telemetry(number)))
    assert packer.payloads.wire_bytes([row])[0] < 2 * shared


def test_the_first_rows_are_soon_forgotten() -> None:
    """Twenty rows go alone, then ten payloads of twenty: their share is known within a third."""
    packer = Packer()
    for number in range(20):
        packer.pack(a_row(number, body=_telemetry(number)))
    for start in range(20, 220, 20):
        rows = [a_row(number, body=_telemetry(number)) for number in range(start, start + 20)]
        packer.pack(*rows)
    share = Packer()
    share.pack(*rows)
    row = a_row(2000, body=_telemetry(2000))
    assert packer.payloads.wire_bytes([row])[0] < 1.34 * share.payloads.wire_bytes([row])[0]


def test_a_row_never_leaves_as_a_batch_or_as_another_sender() -> None:
    """What an older version stored goes out without it, in batches and in records of files."""
    row = a_row(7, device="press-1", properties={"$.cdid": "other", "k": "v"}, body=b"x")
    row.message.system.update({"contentType": BATCH_TYPE, "outputName": "o"})
    packer = Packer()
    ((_, _, body),) = packer.pack(row)
    (record,) = list(read_batch(body, bytes_max=BIG))
    assert (record["properties"], record["system"]) == ({"k": "v"}, {"outputName": "o"})
    assert json.loads(encode_record(row, lambda ms: ms))["properties"] == {"k": "v"}
