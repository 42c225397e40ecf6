"""How a message and a row become columns, and back.

Pure functions on values. Invariant: what is decoded equals what was encoded, the sender's wish for
expiry excepted (it is spent when the row's expiry is resolved).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.errors import StoreCorruptError
from edgehub.message import NEVER_MS, Message, Row

if TYPE_CHECKING:
    from edgehub.store.labels import Labels

ROW_OVERHEAD_BYTES: Final = 64
"""Size of a row in addition to its header and body: columns, index, zone."""

Params = tuple[object, ...]

PLAIN_COLUMNS: Final = ("offset", "enqueued_ms", "expires_ms", "size", "routes", "header", "body")
"""Columns of nearly every row; each bound column costs a quarter of a microsecond."""

FULL_COLUMNS: Final = (
    "offset",
    "enqueued_ms",
    "expires_ms",
    "size",
    "routes",
    "fresh_until_ms",
    "fallback",
    "body_id",
    "predecessor",
    "creation",
    "header",
    "body",
)
"""Columns of a row with recency, with a body that several queues share, of entities."""

SELECT_COLUMNS: Final = (
    "q.offset, q.enqueued_ms, q.expires_ms, q.size, q.routes, q.attempts, q.predecessor,"
    " q.message_id, q.body_id, q.fresh_until_ms, q.creation, coalesce(q.header, b.header),"
    " coalesce(q.body, b.body)"
)


def encode_header(message: Message, labels: Labels) -> bytes:
    """Write all of a message but its body as one JSON list; empty ends are left out.

    Raises:
        orjson.JSONEncodeError: A text cannot be written as UTF-8.
        UnicodeEncodeError: Likewise, in the source.
    """
    source = labels.intern(message.source)
    if message.system:
        return orjson.dumps(
            (message.device_id, message.module_id, source, message.properties, message.system)
        )
    if message.properties:
        return orjson.dumps((message.device_id, message.module_id, source, message.properties))
    return orjson.dumps((message.device_id, message.module_id, source))


def decode_message(header: bytes, body: bytes, message_id: str, labels: Labels) -> Message:
    """Undo `encode_header`."""
    fields = orjson.loads(header)
    count = len(fields)
    return Message(
        fields[0],
        fields[1],
        labels.text(fields[2]),
        fields[3] if count > 3 else {},  # noqa: PLR2004 - places in the list that encode_header wrote
        fields[4] if count > 4 else {},  # noqa: PLR2004 - likewise
        body,
        None,
        message_id,
        "",
        header,
    )


def decode_sender(header: bytes) -> str:
    """Return the sender that `encode_header` wrote, an empty one where the header is damaged."""
    try:
        device, module, *_ = orjson.loads(header)
    except (ValueError, TypeError):
        return ""  # a row that is about to expire need not be whole
    return str(device) if module is None else f"{device}/{module}"


def decode_row(record: tuple[Any, ...], labels: Labels, store_id: str) -> Row:
    """Build a row from the columns `SELECT_COLUMNS`, whose types the table guarantees.

    Raises:
        StoreCorruptError: If its message is damaged.
    """
    (
        offset,
        enqueued_ms,
        expires_ms,
        size,
        routes,
        attempts,
        predecessor,
        message_id,
        body_id,
        fresh_until_ms,
        creation,
        header,
        body,
    ) = record
    message_key = message_id or body_id or 0
    if expires_ms is None:
        expires_ms = NEVER_MS
    if fresh_until_ms is None:
        fresh_until_ms = NEVER_MS
    # SQLite checks pages' structure, not what is in them: a damaged disk may change bytes.
    try:
        if message_id is None:
            message_id = make_message_id(store_id, body_id or offset)
        message = decode_message(header, body, message_id, labels)
        names = labels.routes(routes)
        sum((enqueued_ms, expires_ms, fresh_until_ms, size, attempts))  # TypeError: no number
    except (ValueError, TypeError, LookupError) as error:
        raise StoreCorruptError(f"row {offset} cannot be read: {error}") from error
    row = Row(
        offset,
        message,
        enqueued_ms,
        expires_ms,
        names,
        size,
        attempts,
        predecessor,
        message_key,
    )
    row.fresh_until_ms = fresh_until_ms
    row.creation = creation is not None
    return row


def make_message_id(store_id: str, offset: int) -> str:
    """Name a message: unique over all hubs, and not written into its row."""
    return f"{store_id}-{offset:x}"
