"""The record of a row in JSON, as files and HTTP peers get it, and batches hold it.

Pure, apart from the clock it was given. Invariant: the record of a row is the same at every
repetition, so that receivers can tell copies by `id`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from edgehub.clock import utc_text
from edgehub.message import body_members
from edgehub.mqtt.property_bag import WIRE_NAMES, outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Message, Row


def encode_record(row: Row, utc_ms: Callable[[int], int], *, option: int | None = None) -> bytes:
    """Write the record of a row.

    Args:
        row: The row.
        utc_ms: Returns the UTC, in milliseconds since 1970, of a hub time.
        option: Of orjson, for example a line end.
    """
    message = outgoing(row.message)
    record: dict[str, Any] = {
        "id": message.message_id,
        "device": message.device_id,
        "module": message.module_id,
        "output": message.output,
        "enqueued": utc_text(utc_ms(row.enqueued_ms)),
        "properties": message.properties,
    }
    return orjson.dumps(record | body_members(message.body), option=option)


def encode_batch_record(
    row: Row, utc_ms: Callable[[int], int], leaving: Callable[[Message], Message] = outgoing
) -> bytes:
    """Write the record of a row for a batch: without what is absent, with its system properties.

    Args:
        row: The row.
        utc_ms: Returns the UTC, in milliseconds since 1970, of a hub time.
        leaving: Returns a message as it may leave for the peer.
    """
    message = leaving(row.message)
    record: dict[str, Any] = {"id": message.message_id, "device": message.device_id}
    if message.module_id is not None:
        record["module"] = message.module_id
    record["enqueued"] = utc_text(utc_ms(row.enqueued_ms))
    system = {name: value for name, value in message.system.items() if name in WIRE_NAMES}
    if message.properties:
        record["properties"] = message.properties
    if system:
        # The output of a module is one of them.
        record["system"] = system
    return orjson.dumps(record | body_members(message.body))
