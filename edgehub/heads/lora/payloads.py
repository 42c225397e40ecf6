"""The bodies of messages from and to a device that has a decoder.

From it: JSON whose members are named as those of an uplink message of The Things Stack. Invariant:
the raw payload is in it, whatever became of the decoding. To it: JSON that its decoder encodes.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from edgehub.decoders.scripts import DecoderError

if TYPE_CHECKING:
    from edgehub.decoders.decoders import Decoders, Encoded
    from edgehub.message import Message

_JSON_TYPE: Final = "application/json"
ERROR_PROPERTY: Final = "loraDecodeError"
_ERROR_CHARS_MAX: Final = 200


class DecodedUplink(NamedTuple):
    """What the document says of the frame.

    Attributes:
        f_port: Its port.
        f_cnt: Its full counter.
        received_ms: When it came, in milliseconds of Unix time.
    """

    f_port: int
    f_cnt: int
    received_ms: int


async def decode_body(
    message: Message, decoders: Decoders, decoder: str, uplink: DecodedUplink
) -> None:
    """Replace the payload as body of a message by a JSON document with the decoded one.

    Args:
        message: Not submitted yet.
        decoders: Decode payloads.
        decoder: Name of one of them.
        uplink: The frame.
    """
    payload = message.body
    document: dict[str, Any] = {
        "f_port": uplink.f_port,
        "f_cnt": uplink.f_cnt,
        "frm_payload": base64.b64encode(payload).decode(),
    }
    try:
        decoded = await decoders.decode(decoder, payload, uplink.f_port, uplink.received_ms)
    except DecoderError as error:
        message.properties[ERROR_PROPERTY] = _plain(str(error))
    else:
        document["decoded_payload"] = decoded.data
        if decoded.warnings:
            document["decoded_payload_warnings"] = decoded.warnings
    message.body = orjson.dumps(document)
    message.system |= {"contentType": _JSON_TYPE, "contentEncoding": "utf-8"}


def is_encodable(message: Message) -> bool:
    """Return whether a message to a device is JSON by its content type, for the decoder."""
    kind = (message.system.get("contentType") or "").partition(";")[0]
    return kind.strip().lower() == _JSON_TYPE


async def encode_body(body: bytes, port: str | None, decoders: Decoders, decoder: str) -> Encoded:
    """Encode the JSON body of a message to a device.

    Args:
        body: Of the message.
        port: That its sender asks for, None = none.
        decoders: Encode bodies.
        decoder: Name of one of them.

    Raises:
        DecoderError: It was not encoded.
    """
    try:
        data = orjson.loads(body)
    except ValueError as error:
        raise DecoderError("failed", f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise DecoderError("failed", "the body is no JSON object")
    is_number = port is not None and port.isascii() and port.isdecimal()
    return await decoders.encode(decoder, data, int(port) if port and is_number else None)


def _plain(text: str) -> str:
    shown = text[:_ERROR_CHARS_MAX]
    return "".join(letter if letter.isprintable() else " " for letter in shown)
