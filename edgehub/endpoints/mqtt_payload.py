"""What a PUBLISH carries: one row, or a batch of rows; in MQTT 5 with properties.

Pure, apart from bounded memos and the clock that records are given. Invariants: each row that is
packed is in exactly one payload or refused; no payload makes a larger packet than the peer takes;
payloads of one sender's rows are in the order of these.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from edgehub.endpoints.mqtt_topic import TOPIC_BYTES_MAX, TopicError, Topics
from edgehub.endpoints.record import encode_batch_record
from edgehub.message import NEVER_MS, FailureKind, SendResult
from edgehub.mqtt.batch import RECORDS_MAX, ZSTD_ENCODING, build_batch
from edgehub.mqtt.fields import STRING_BYTES_MAX, variable
from edgehub.mqtt.message_properties import expiry_s, write_message_properties
from edgehub.mqtt.packets import LEVEL_5, PACKET_ID_BYTES, publish_start
from edgehub.mqtt.properties import Property, write_block
from edgehub.mqtt.property_bag import ORIGIN_PROPERTY, build_batch_bag, outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from edgehub.message import Message, Row

    Refuse = Callable[[Row, SendResult], None]
    Payload = tuple[Sequence[Row], bytes, bytes, int]
    """Rows of one PUBLISH, its bytes before and after the packet id, and their number with it."""
    WriteBlock = Callable[[Row], bytes | SendResult]
    """Returns the property block of a row, or why it has none."""

NO_PROPERTIES: Final = b"\0"
"""An empty property block, which a PUBLISH of MQTT 5 has at least."""

_MS_PER_S: Final = 1000
_EXPIRY: Final = struct.Struct(">BI").pack
_REMEMBERED_BYTES: Final = 65_536
"""Of records; the compression is estimated from the last ones of about so many bytes."""
_REMEMBERED_BYTES_FIRST: Final = 4096
"""The same at first: on a thin link it would take minutes to forget the first rows, sent alone."""


class Payloads(Protocol):
    """A way to make PUBLISHes of rows."""

    rows_share_payloads: bool
    """Whether a PUBLISH may hold several rows."""

    def use(self, level: int, packet_bytes_max: int | None) -> None:
        """Record what the connection takes that the next payloads are for.

        Args:
            level: Protocol level.
            packet_bytes_max: Largest packet that the peer says to take, None = it does not say.
        """

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes that each of `rows` takes on the link, header and topic included."""

    def pack(self, rows: Sequence[Row], refuse: Refuse) -> Iterable[Payload]:
        """Return what is to be published, in order; `refuse` gets the rows that can never be."""

    def confirmed(self) -> None:
        """Record that the peer takes payloads."""

    def closed(self) -> None:
        """Record that the peer closed the connection on a payload that had left whole."""


class RowProperties:
    """The properties of MQTT 5 that a row is published with.

    Args:
        now_ms: Hub time.
        named: Write the message's own properties; those that the topic does not hold.
        expiry: Write what is left of the time to live.
        origin: Hub that messages name as the one that publishes them, None = not.
    """

    __slots__ = (
        "_block",
        "_block_s",
        "_expiry",
        "_lasting_block",
        "_named",
        "_now_ms",
        "_origin",
        "_origin_block",
    )

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        named: bool,
        expiry: bool,
        origin: str | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._named = named
        self._expiry = expiry
        self._origin = origin
        said = [] if origin is None else [(Property.USER_PROPERTY, (ORIGIN_PROPERTY, origin))]
        self._origin_block = write_block(said)
        self._lasting_block = variable(len(self._origin_block)) + self._origin_block
        """Of rows that do not expire."""
        self._block_s: int | None = None
        self._block = b""
        """What was written last, for a row that expires in so many seconds."""

    def writer(self) -> WriteBlock:
        """Return what writes the property blocks of rows that are sent now, length in front.

        It returns why there is none for rows that cannot be sent.
        """
        return partial(self._write, self._now_ms())

    def _write(self, now_ms: int, row: Row) -> bytes | SendResult:
        left_ms = None
        if self._expiry and row.expires_ms < NEVER_MS:
            left_ms = row.expires_ms - now_ms
        if self._named:
            message = outgoing(row.message)
            # A character has four bytes at most.
            if any(
                len(text) * 4 > STRING_BYTES_MAX and len(text.encode()) > STRING_BYTES_MAX
                for text in _texts(message.properties, message.system)
            ):
                text = f"a property of more than {STRING_BYTES_MAX} bytes"
                return SendResult(FailureKind.TOO_LARGE, text)
            return write_message_properties(message, left_ms, origin=self._origin)
        if left_ms is None:
            return self._lasting_block
        # Without the general writer, and once for many: this runs once per message.
        left_s = -(-left_ms // _MS_PER_S)
        if left_s != self._block_s:
            block = _EXPIRY(Property.MESSAGE_EXPIRY_INTERVAL, expiry_s(left_ms))
            block += self._origin_block
            self._block_s, self._block = left_s, variable(len(block)) + block
        return self._block


def _texts(*properties: Mapping[str, str | None]) -> Iterator[str]:
    for each in properties:
        for name, value in each.items():
            yield name
            yield value or ""


class _Made(Struct, eq=False):
    """What is published of some rows.

    Attributes:
        rows: The rows.
        sizes: Bytes that each of them takes on the link.
        payloads: Of those that can be published.
        refused: The others, and why.
    """

    rows: Sequence[Row] = ()
    sizes: list[int] = []
    payloads: list[Payload] = []
    refused: list[tuple[Row, SendResult]] = []

    def refuse(self, row: Row, result: SendResult) -> None:
        """Record why a row cannot be published."""
        self.sizes.append(row.size)
        self.refused.append((row, result))


class SingleRows:
    """A PUBLISH for each row.

    Args:
        topics: How rows are named.
        packet_bytes_max: Largest packet that the peer takes, None = not known.
        properties: Those of MQTT 5, None = none.
    """

    __slots__ = ("_limit", "_made", "_packet_bytes_max", "_properties", "_topics", "_writer")
    rows_share_payloads = False

    def __init__(
        self,
        topics: Topics,
        packet_bytes_max: int | None,
        properties: RowProperties | None = None,
    ) -> None:
        self._topics = topics
        self._packet_bytes_max = self._limit = packet_bytes_max
        self._properties = properties
        self._writer: Callable[[], WriteBlock] = lambda: _nothing
        self._made = _Made()
        """Of the rows that were measured last: making it is most of sending the rows."""

    def use(self, level: int, packet_bytes_max: int | None) -> None:
        """Record what the connection takes that the next payloads are for."""
        self._limit = least(self._packet_bytes_max, packet_bytes_max)
        if level < LEVEL_5:
            self._writer = lambda: _nothing
        elif self._properties is None:
            self._writer = lambda: _no_properties
        else:
            self._writer = self._properties.writer
        self._made = _Made()

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the bytes that each of `rows` takes on the link, header and topic included."""
        self._made = made = self._make(rows)
        return made.sizes

    def pack(self, rows: Sequence[Row], refuse: Refuse) -> Iterable[Payload]:
        """Return what is to be published, in order; `refuse` gets the rows that can never be."""
        made = self._made if rows is self._made.rows else self._make(rows)
        self._made = _Made()
        for row, result in made.refused:
            refuse(row, result)
        return made.payloads

    def _make(self, rows: Sequence[Row]) -> _Made:
        made = _Made(rows)
        sizes, payloads = made.sizes, made.payloads
        write_block = self._writer()
        limit = self._limit
        for row in rows:
            topic = topic_of(row, self._topics)
            block = write_block(row)
            if isinstance(topic, SendResult):
                made.refuse(row, topic)
                continue
            if isinstance(block, SendResult):
                made.refuse(row, block)
                continue
            rest = block + row.message.body
            start = publish_start(topic, PACKET_ID_BYTES + len(rest))
            size = len(start) + PACKET_ID_BYTES + len(rest)
            sizes.append(size)
            if limit is None or size <= limit:
                payloads.append(((row,), start, rest, size))
            else:
                made.refused.append((row, too_large("packet", size, limit)))
        return made

    def confirmed(self) -> None:
        """Record that the peer takes payloads; has no effect."""

    def closed(self) -> None:
        """Do nothing: a payload of one row is as small as can be."""


class _Group(Struct, eq=False):
    topic: bytes
    rows: list[Row] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, row: Row, record: bytes) -> None:
        self.rows.append(row)
        self.records.append(record)
        self.size += len(record) + 1


class BatchedRows:
    """A PUBLISH for as many rows as were sent together and share a topic.

    A payload that the peer may have refused by closing is halved with each further close, so that
    a row that is to blame is alone after a few of them.

    Args:
        topics: How rows are named; rows of one topic share payloads.
        utc_ms: Returns the UTC, in milliseconds since 1970, of a hub time.
        rows_max: Rows of one payload.
        bytes_max: Bytes of the records of one payload before compression; a larger row goes alone.
        compress: See `build_batch`.
        packet_bytes_max: Largest packet that the peer takes, None = not known.
        leaving: Returns a message as it may leave for the peer.
    """

    rows_share_payloads = True

    def __init__(
        self,
        topics: Topics,
        utc_ms: Callable[[int], int],
        *,
        rows_max: int,
        bytes_max: int,
        compress: bool,
        packet_bytes_max: int | None,
        leaving: Callable[[Message], Message] = outgoing,
    ) -> None:
        assert 1 <= rows_max <= RECORDS_MAX, rows_max
        self._topics = topics
        self._utc_ms = utc_ms
        self._leaving = leaving
        self._rows_max = self._rows_max_now = rows_max
        self._bytes_max = bytes_max
        self._compress = compress
        self._packet_bytes_max = self._limit = packet_bytes_max
        self._properties = b""
        self._measured: Sequence[Row] = ()
        self._records: list[bytes] = []
        """Those of the rows that were measured last: writing them is most of sending the rows."""
        self._record_bytes = self._packet_bytes = 1.0
        self._remembered_bytes = _REMEMBERED_BYTES_FIRST

    def use(self, level: int, packet_bytes_max: int | None) -> None:
        """Record what the connection takes that the next payloads are for."""
        self._limit = least(self._packet_bytes_max, packet_bytes_max)
        self._properties = NO_PROPERTIES if level >= LEVEL_5 else b""

    def wire_bytes(self, rows: Sequence[Row]) -> list[int]:
        """Return the share of each of `rows` of a packet, as the last ones were."""
        records = self._records = [self._record(row) for row in rows]
        self._measured = rows
        share = self._packet_bytes / self._record_bytes
        return [max(1, round((len(record) + 1) * share)) for record in records]

    def pack(self, rows: Sequence[Row], refuse: Refuse) -> Iterator[Payload]:
        """Return what is to be published, in order; `refuse` gets the rows that can never be."""
        for group in self._groups(rows, refuse):
            yield from self._payloads(group.topic, group.rows, group.records, refuse)

    def confirmed(self) -> None:
        """Record that the peer takes payloads."""
        self._rows_max_now = min(self._rows_max, 2 * self._rows_max_now)

    def closed(self) -> None:
        """Record that the peer closed the connection on a payload that had left whole."""
        self._rows_max_now = max(1, self._rows_max_now // 2)

    def _record(self, row: Row) -> bytes:
        return encode_batch_record(row, self._utc_ms, self._leaving)

    def _groups(self, rows: Sequence[Row], refuse: Refuse) -> list[_Group]:
        groups: list[_Group] = []
        open_for: dict[bytes, int] = {}
        last_of: dict[str, int] = {}
        is_measured = rows is self._measured
        records = self._records if is_measured else [self._record(row) for row in rows]
        self._measured, self._records = (), []
        for row, record in zip(rows, records, strict=True):
            topic = topic_of(row, self._topics)
            if isinstance(topic, SendResult):
                refuse(row, topic)
                continue
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
        rest = self._properties + body
        start = publish_start(topic, PACKET_ID_BYTES + len(rest))
        size = len(start) + PACKET_ID_BYTES + len(rest)
        limit = self._limit
        if limit is None or size <= limit:
            plain = sum([len(record) + 1 for record in records])
            self._learn(plain, size)
            yield rows, start, rest, size
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

    def __init__(self, client_id: str, *, compress: bool) -> None:
        device, _, module = client_id.partition("/")
        place = f"devices/{device}/modules/{module}" if module else f"devices/{device}"
        encoding = ZSTD_ENCODING if compress else None
        bag = build_batch_bag(device, module or None, encoding=encoding)
        self._topic = f"{place}/messages/events/{bag}".encode()

    def topic(self, row: Row) -> bytes:
        """Return the topic in UTF-8; raises `TopicError`."""
        del row
        return self._topic


def topic_of(row: Row, topics: Topics) -> bytes | SendResult:
    """Return the topic of a row, or why it has none."""
    try:
        topic = topics.topic(row)
    except TopicError as error:
        return SendResult(FailureKind.REJECTED, str(error))
    if len(topic) > TOPIC_BYTES_MAX:
        return too_large("topic", len(topic), TOPIC_BYTES_MAX)
    return topic


def least(own: int | None, said: int | None) -> int | None:
    """Return the smaller of two bounds, None = there is none."""
    if own is None or said is None:
        return said if own is None else own
    return min(own, said)


def _nothing(_row: Row) -> bytes:
    return b""


def _no_properties(_row: Row) -> bytes:
    return NO_PROPERTIES


def too_large(what: str, size: int, limit: int) -> SendResult:
    """Return the result of something that is larger than the peer takes."""
    return SendResult(FailureKind.TOO_LARGE, f"{what} of {size} bytes, the peer takes {limit}")
