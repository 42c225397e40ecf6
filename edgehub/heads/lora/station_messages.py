"""Messages of Basics Station's LNS protocol, version 2: frames as JSON members, and back.

Pure functions. Addresses and MICs are signed numbers of 32 bits there. `JoinEui` or `JoinEUI` is a
matter of the station's build, so both are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.lora.frames import MIC_BYTES, FrameError
from edgehub.lora.identifiers import dashed_eui, parse_eui

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.lora.frames import DataFrame, JoinRequestFrame

_WHOLE_FRAMES: Final = frozenset({"propdf", "jacc", "rejoin"})
"""Messages whose member FRMPayload or pdu is the frame."""

_PORT_NONE: Final = -1


def phy_payload_of(message: Mapping[str, Any]) -> bytes:
    """Return the frame that `jreq`, `updf`, `dndf`, `propdf`, `jacc` or `rejoin` carries.

    Raises:
        FrameError: A member is missing or is not what it should be.
    """
    kind = message.get("msgtype")
    if kind in _WHOLE_FRAMES:
        name = "pdu" if "pdu" in message else "FRMPayload"
        return _hex(message, name)
    if kind == "jreq":
        return b"".join(
            (
                _unsigned(message, "MHdr", 1),
                _eui(message, "JoinEui").to_bytes(8, "little"),
                _eui(message, "DevEui").to_bytes(8, "little"),
                _unsigned(message, "DevNonce", 2),
                _signed(message, "MIC"),
            )
        )
    port = _whole(message, "FPort", _PORT_NONE, 0xFF)
    payload = _hex(message, "FRMPayload")
    if port == _PORT_NONE and payload:
        raise FrameError("`FRMPayload` without `FPort`")
    return b"".join(
        (
            _unsigned(message, "MHdr", 1),
            _signed(message, "DevAddr"),
            _unsigned(message, "FCtrl", 1),
            _unsigned(message, "FCnt", 2),
            _hex(message, "FOpts"),
            b"" if port == _PORT_NONE else bytes([port]),
            payload,
            _signed(message, "MIC"),
        )
    )


def join_request_message(frame: JoinRequestFrame) -> dict[str, Any]:
    """Return a join request as a station sends it, without the radio part."""
    return {
        "msgtype": "jreq",
        "MHdr": frame.mhdr,
        "JoinEui": dashed_eui(frame.join_eui),
        "DevEui": dashed_eui(frame.dev_eui),
        "DevNonce": frame.dev_nonce,
        "MIC": int.from_bytes(frame.mic, "little", signed=True),
    }


def data_message(frame: DataFrame) -> dict[str, Any]:
    """Return an uplink as a station sends it, without the radio part."""
    return {
        "msgtype": "updf",
        "MHdr": frame.mhdr,
        "DevAddr": int.from_bytes(frame.dev_addr.to_bytes(4), signed=True),
        "FCtrl": frame.f_ctrl | len(frame.f_opts),
        "FCnt": frame.f_cnt,
        "FOpts": frame.f_opts.hex().upper(),
        "FPort": _PORT_NONE if frame.f_port is None else frame.f_port,
        "FRMPayload": frame.frm_payload.hex().upper(),
        "MIC": int.from_bytes(frame.mic, "little", signed=True),
    }


def _eui(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name, message.get(name.replace("Eui", "EUI")))
    if not isinstance(value, str):
        raise FrameError(f"`{name}` is no EUI")
    try:
        return parse_eui(value)
    except ValueError as error:
        raise FrameError(f"`{name}`: {error}") from error


def _whole(message: Mapping[str, Any], name: str, minimum: int, maximum: int) -> int:
    value = message.get(name)
    if type(value) is not int or not minimum <= value <= maximum:
        raise FrameError(f"`{name}` is no whole number from {minimum} to {maximum}")
    return value


def _unsigned(message: Mapping[str, Any], name: str, size: int) -> bytes:
    return _whole(message, name, 0, 256**size - 1).to_bytes(size, "little")


def _signed(message: Mapping[str, Any], name: str) -> bytes:
    # Some builds write them without a sign.
    value = _whole(message, name, -(2**31), 2**32 - 1)
    return (value & 0xFFFF_FFFF).to_bytes(MIC_BYTES, "little")


def _hex(message: Mapping[str, Any], name: str) -> bytes:
    value = message.get(name)
    if not isinstance(value, str):
        raise FrameError(f"`{name}` is no text of hex digits")
    try:
        return bytes.fromhex(value)
    except ValueError as error:
        raise FrameError(f"`{name}` is no text of hex digits") from error
