"""What a PUBLISH carries: one row, or a batch of rows.

Pure, apart from bounded memos and the clock that records are given. Invariants: each row that is
packed is in exactly one payload or refused; no payload makes a larger packet than the peer takes;
payloads of one sender's rows stand in the order of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from edgehub.endpoints.mqtt_topic import TOPIC_BYTES_MAX, TopicError, Topics
from edgehub.endpoints.record import encode_batch_record
from edgehub.message import FailureKind, SendResult
from edgehub.mqtt.batch import RECORDS_MAX, ZSTD_ENCODING, build_batch
from edgehub.mqtt.packets import publish_bytes
from edgehub.mqtt.property_bag import build_batch_bag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgehub.message import Row

    Refuse = Callable[[Row, SendResult], None]
    Payload = tuple[Sequence[Row], bytes, bytes]
    """Rows, topic and body of one PUBLISH."""

_MEMO_MAX: Final = 8192
_REMEMBERED_BYTES: Final = 65_536
"""Of records; how far they compress is told by the last ones of about so many bytes."""
_REMEMBERED_BYTES_FIRST: Final = 4096
"""The same at first: on a thin link it would take minutes to forget the first rows, sent alone."""


class Payloads(Protocol):
    """A way to make PUBLISHes of rows."""

    def wire_bytes(self, row: Row) -> int:
        """Give the bytes that a row takes on the link, header and topic included."""

    def pack(self, rows: Sequence[Row], refuse: Refuse) -> Iterator[Payload]:
        """Give what is to be published, in order; `refuse` gets the rows that can never be."""

    def confirmed(self) -> None:
        """Note that the peer takes payloads."""

    def closed(self) -> None:
        """Note that the peer closed the connection on a payload that had left whole."""


class SingleRows:
    """A PUBLISH for each row.

    Args:
        topics: How rows are named.
        packet_bytes_max: Largest packet that the peer takes, None = not known.
    """

    __slots__ = ("_memo", "_packet_bytes_max", "_topics")

    def __init__(self, topics: Topics, packet_bytes_max: int | None) -> None:
        self._topics = topics
        self._packet_bytes_max = packet_bytes_max
        self._memo: dict[int, bytes] = {}

    def wire_bytes(self, row: Row) -> int:
        """See `Payloads`."""
        topic = topic_of(row, self._topics)
        if isinstance(topic, SendResult):
            return row.size
        if len(self._memo) >= _MEMO_MAX:
            self._memo.clear()
        # Sending follows at once, and building the topic is the dearest part of it.
        self._memo[row.offset] = topic
        return publish_bytes(len(topic), len(row.message.body))

    def pack(self, rows: Sequence[Row], refuse: Refuse) -> Iterator[Payload]:
        """See `Payloads`."""
        limit = self._packet_bytes_max
        for row in rows:
            topic = self._memo.pop(row.offset, None) or topic_of(row, self._topics)
            if isinstance(topic, SendResult):
                refuse(row, topic)
                continue
            body = row.message.body
            if limit is not None and publish_bytes(len(topic), len(body)) > limit:
                refuse(row, too_large("packet", publish_bytes(len(topic), len(body)), limit))
                continue
            yield (row,), topic, body

    def confirmed(self) -> None:
        """See `Payloads`; nothing is learnt from it."""

    def closed(self) -> None:
        """See `Payloads`; nothing is learnt from it."""


class _Group:
    __slots__ = ("records", "rows", "size", "topic")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.rows: list[Row] = []
        self.records: list[bytes] = []
        self.size = 0

    def add(self, row: Row, record: bytes) -> None:
        self.rows.append(row)
        self.records.append(record)
        self.size += len(record) + 1


class BatchedRows:
    """A PUBLISH for as many rows as were handed over together and share a topic.

    A payload that the peer may have refused by closing is halved with each further close, so that
    a row that is to blame is alone after a few of them.

    Args:
        topics: How rows are named; rows of one topic share payloads.
        utc_ms: Gives the UTC, in milliseconds since 1970, of a hub time.
        rows_max: Rows of one payload.
        bytes_max: Bytes of the records of one payload before compression; a larger row goes alone.
        compress: See `build_batch`.
        packet_bytes_max: Largest packet that the peer takes, None = not known.
    """

    __slots__ = (
        "_bytes_max",
        "_compress",
        "_memo",
        "_packet_bytes",
        "_packet_bytes_max",
        "_record_bytes",
        "_remembered_bytes",
        "_rows_max",
        "_rows_max_now",
        "_topics",
        "_utc_ms",
    )

    def __init__(
        self,
        topics: Topics,
        utc_ms: Callable[[int], int],
        *,
        rows_max: int,
        bytes_max: int,
        compress: bool,
        packet_bytes_max: int | None,
    ) -> None:
        assert 1 <= rows_max <= RECORDS_MAX, rows_max
        self._topics = topics
        self._utc_ms = utc_ms
        self._rows_max = self._rows_max_now = rows_max
        self._bytes_max = bytes_max
        self._compress = compress
        self._packet_bytes_max = packet_bytes_max
        self._memo: dict[int, bytes] = {}
        self._record_bytes = self._packet_bytes = 1.0
        self._remembered_bytes = _REMEMBERED_BYTES_FIRST

    def wire_bytes(self, row: Row) -> int:
        """See `Payloads`; its share of a packet, as the last ones were."""
        record = encode_batch_record(row, self._utc_ms)
        if len(self._memo) >= _MEMO_MAX:
            self._memo.clear()
        # Sending follows at once, and writing the record is the dearest part of it.
        self._memo[row.offset] = record
        return max(1, round((len(record) + 1) * self._packet_bytes / self._record_bytes))

    def pack(self, rows: Sequence[Row], refuse: Refuse) -> Iterator[Payload]:
        """See `Payloads`."""
        for group in self._groups(rows, refuse):
            yield from self._payloads(group.topic, group.rows, group.records, refuse)

    def confirmed(self) -> None:
        """See `Payloads`."""
        self._rows_max_now = min(self._rows_max, 2 * self._rows_max_now)

    def closed(self) -> None:
        """See `Payloads`."""
        self._rows_max_now = max(1, self._rows_max_now // 2)

    def _groups(self, rows: Sequence[Row], refuse: Refuse) -> list[_Group]:
        groups: list[_Group] = []
        open_for: dict[bytes, int] = {}
        last_of: dict[str, int] = {}
        for row in rows:
            topic = topic_of(row, self._topics)
            if isinstance(topic, SendResult):
                self._memo.pop(row.offset, None)
                refuse(row, topic)
                continue
            record = self._memo.pop(row.offset, None) or encode_batch_record(row, self._utc_ms)
            sender = row.message.sender
            index = open_for.get(topic)
            # A row may not stand before an earlier one of its sender, which has another topic.
            if (
                index is None
                or index < last_of.get(sender, 0)
                or len(groups[index].rows) >= self._rows_max_now
                or groups[index].size + len(record) >= self._bytes_max
            ):
                index = open_for[topic] = len(groups)
                groups.append(_Group(topic))
            groups[index].add(row, record)
            last_of[sender] = index
        return groups

    def _payloads(
        self, topic: bytes, rows: Sequence[Row], records: Sequence[bytes], refuse: Refuse
    ) -> Iterator[Payload]:
        body = build_batch(records, compress=self._compress)
        size = publish_bytes(len(topic), len(body))
        limit = self._packet_bytes_max
        if limit is None or size <= limit:
            plain = sum([len(record) + 1 for record in records])
            self._learn(plain, size)
            yield rows, topic, body
        elif len(rows) == 1:
            refuse(rows[0], too_large("packet", size, limit))
        else:
            middle = len(rows) // 2
            for part in (slice(None, middle), slice(middle, None)):
                yield from self._payloads(topic, rows[part], records[part], refuse)

    def _learn(self, record_bytes: int, packet_bytes: int) -> None:
        # By bytes, so that rows which were sent alone say little about those that were not.
        self._record_bytes += record_bytes
        self._packet_bytes += packet_bytes
        if self._record_bytes > self._remembered_bytes:
            self._record_bytes /= 2
            self._packet_bytes /= 2
            self._remembered_bytes = min(_REMEMBERED_BYTES, 2 * self._remembered_bytes)


class BatchTopic:
    """The one topic of batches in the IoT Hub dialect: that of the hub's own identity.

    Args:
        client_id: `<device>` or `<device>/<module>`: as whom the hub signs in.
        compress: Whether payloads are compressed.
    """

    __slots__ = ("_topic",)

    def __init__(self, client_id: str, *, compress: bool) -> None:
        device, _, module = client_id.partition("/")
        place = f"devices/{device}/modules/{module}" if module else f"devices/{device}"
        encoding = ZSTD_ENCODING if compress else None
        bag = build_batch_bag(device, module or None, encoding=encoding)
        self._topic = f"{place}/messages/events/{bag}".encode()

    def topic(self, row: Row) -> bytes:
        """See `Topics`."""
        del row
        return self._topic


def topic_of(row: Row, topics: Topics) -> bytes | SendResult:
    """Give the topic of a row, or why it has none."""
    try:
        topic = topics.topic(row)
    except TopicError as error:
        return SendResult(FailureKind.REJECTED, str(error))
    if len(topic) > TOPIC_BYTES_MAX:
        return too_large("topic", len(topic), TOPIC_BYTES_MAX)
    return topic


def too_large(what: str, size: int, limit: int) -> SendResult:
    """Say that something is larger than the peer takes."""
    return SendResult(FailureKind.TOO_LARGE, f"{what} of {size} bytes, the peer takes {limit}")
