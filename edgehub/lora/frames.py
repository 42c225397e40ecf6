"""LoRaWAN frames: PHYPayload to objects and back (LoRaWAN 1.0.4 and 1.1, section 4 to 6).

Pure functions; keys are of no interest here, so payloads stay as they are on air. Invariant: a
frame that is parsed is built to the same bytes again, reserved bits included, since its MIC covers
them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, TypeAlias

from msgspec import Struct

MIC_BYTES: Final = 4
PHY_PAYLOAD_MAX: Final = 255
F_OPTS_MAX: Final = 15
_DATA_MIN: Final = 12
_DATA_HEAD: Final = struct.Struct("<BIBH")
_JOIN_REQUEST: Final = struct.Struct("<BQQH")
_JOIN_REQUEST_BYTES: Final = 23
_JOIN_ACCEPT_BYTES: Final = (17, 33)
_REJOIN_BYTES: Final = {0: 19, 1: 24, 2: 19}
_MAJOR: Final = 0x03

ADR: Final = 0x80
ADR_ACK_REQ: Final = 0x40
ACK: Final = 0x20
CLASS_B: Final = 0x10
F_PENDING: Final = 0x10
_F_OPTS_LENGTH: Final = 0x0F


class FrameError(ValueError):
    """Bytes that are no LoRaWAN frame, or members that make none."""


class MType(IntEnum):
    """What a frame is."""

    JOIN_REQUEST = 0
    JOIN_ACCEPT = 1
    UNCONFIRMED_DATA_UP = 2
    UNCONFIRMED_DATA_DOWN = 3
    CONFIRMED_DATA_UP = 4
    CONFIRMED_DATA_DOWN = 5
    REJOIN_REQUEST = 6
    PROPRIETARY = 7


class Direction(IntEnum):
    """The way of a data frame, as cryptography counts it."""

    UP = 0
    DOWN = 1


def mhdr_of(m_type: MType) -> int:
    """Return the MHDR of a frame of major version 0."""
    return m_type << 5


class DataFrame(Struct, frozen=True, kw_only=True):
    """A data frame, up or down.

    Attributes:
        mhdr: First byte, with reserved bits.
        dev_addr: Device address.
        f_ctrl: Its flags; the length of FOpts is not part of it.
        f_cnt: Low 16 bits of the frame counter.
        f_opts: MAC commands in the header, at most 15 bytes; 1.1 encrypts them.
        f_port: None = there is none, and no payload.
        frm_payload: Encrypted payload.
        mic: Message integrity code.
    """

    mhdr: int
    dev_addr: int
    f_ctrl: int = 0
    f_cnt: int
    f_opts: bytes = b""
    f_port: int | None = None
    frm_payload: bytes = b""
    mic: bytes = bytes(MIC_BYTES)

    @property
    def m_type(self) -> MType:
        """Return what it is."""
        return MType(self.mhdr >> 5)

    @property
    def direction(self) -> Direction:
        """Return its way."""
        up = (MType.UNCONFIRMED_DATA_UP, MType.CONFIRMED_DATA_UP)
        return Direction.UP if self.m_type in up else Direction.DOWN

    @property
    def is_confirmed(self) -> bool:
        """Return whether its receiver has to acknowledge it."""
        return self.m_type in (MType.CONFIRMED_DATA_UP, MType.CONFIRMED_DATA_DOWN)

    @property
    def adr(self) -> bool:
        """Return whether the data rate is adapted."""
        return bool(self.f_ctrl & ADR)

    @property
    def adr_ack_req(self) -> bool:
        """Return whether the device asks for any downlink; only up."""
        return bool(self.f_ctrl & ADR_ACK_REQ)

    @property
    def ack(self) -> bool:
        """Return whether the last confirmed frame of the other side arrived."""
        return bool(self.f_ctrl & ACK)

    @property
    def class_b(self) -> bool:
        """Return whether the device listens as class B; only up."""
        return bool(self.f_ctrl & CLASS_B)

    @property
    def f_pending(self) -> bool:
        """Return whether more waits for the device; only down."""
        return bool(self.f_ctrl & F_PENDING)

    def signed_part(self) -> bytes:
        """Return the bytes that the MIC covers.

        Raises:
            FrameError: A member has no place in a frame.
        """
        if len(self.f_opts) > F_OPTS_MAX:
            raise FrameError(f"FOpts has {len(self.f_opts)} bytes, at most {F_OPTS_MAX} fit")
        if self.f_port is None and self.frm_payload:
            raise FrameError("a payload needs a FPort")
        if self.f_port == 0 and self.f_opts:
            raise FrameError("FPort 0 and FOpts exclude each other")
        port = b"" if self.f_port is None else bytes([self.f_port])
        f_ctrl = self.f_ctrl & ~_F_OPTS_LENGTH | len(self.f_opts)
        head = _DATA_HEAD.pack(self.mhdr, self.dev_addr, f_ctrl, self.f_cnt)
        return head + self.f_opts + port + self.frm_payload

    def build(self) -> bytes:
        """Return the PHYPayload.

        Raises:
            FrameError: A member has no place in a frame, or it is too long.
        """
        payload = self.signed_part() + self.mic
        if len(payload) > PHY_PAYLOAD_MAX:
            raise FrameError(f"{len(payload)} bytes are no frame, at most {PHY_PAYLOAD_MAX} are")
        return payload


class JoinRequestFrame(Struct, frozen=True, kw_only=True):
    """A join request."""

    mhdr: int = 0
    join_eui: int
    dev_eui: int
    dev_nonce: int
    mic: bytes = bytes(MIC_BYTES)

    def signed_part(self) -> bytes:
        """Return the bytes that the MIC covers."""
        return _JOIN_REQUEST.pack(self.mhdr, self.join_eui, self.dev_eui, self.dev_nonce)

    def build(self) -> bytes:
        """Return the PHYPayload."""
        return self.signed_part() + self.mic


class RejoinRequestFrame(Struct, frozen=True, kw_only=True):
    """A rejoin request of LoRaWAN 1.1.

    Attributes:
        mhdr: First byte.
        rejoin_type: 0 and 2 name a NetID, 1 a JoinEUI.
        home: That NetID or JoinEUI.
        dev_eui: The device.
        rj_count: Its number.
        mic: Message integrity code.
    """

    mhdr: int = MType.REJOIN_REQUEST << 5
    rejoin_type: int
    home: int
    dev_eui: int
    rj_count: int
    mic: bytes = bytes(MIC_BYTES)

    def signed_part(self) -> bytes:
        """Return the bytes that the MIC covers."""
        return b"".join(
            (
                bytes([self.mhdr, self.rejoin_type]),
                self.home.to_bytes(8 if self.rejoin_type == 1 else 3, "little"),
                self.dev_eui.to_bytes(8, "little"),
                self.rj_count.to_bytes(2, "little"),
            )
        )

    def build(self) -> bytes:
        """Return the PHYPayload."""
        return self.signed_part() + self.mic


class JoinAcceptFrame(Struct, frozen=True, kw_only=True):
    """A join accept as it is on air: all but its first byte is encrypted."""

    mhdr: int
    encrypted: bytes

    def build(self) -> bytes:
        """Return the PHYPayload."""
        return bytes([self.mhdr]) + self.encrypted


class ProprietaryFrame(Struct, frozen=True, kw_only=True):
    """A frame whose contents LoRaWAN leaves open."""

    mhdr: int
    payload: bytes

    def build(self) -> bytes:
        """Return the PHYPayload."""
        return bytes([self.mhdr]) + self.payload


Frame: TypeAlias = (
    DataFrame | JoinRequestFrame | JoinAcceptFrame | RejoinRequestFrame | ProprietaryFrame
)


class JoinAcceptFields(Struct, frozen=True, kw_only=True):
    """What a join accept says once it is decrypted.

    Attributes:
        app_nonce: Server's number of 24 bits; JoinNonce in 1.1.
        net_id: Network.
        dev_addr: Address of the session.
        dl_settings: OptNeg, offset of the data rate of RX1, data rate of RX2; see `dl_settings`.
        rx_delay: Seconds until RX1, 0 = 1.
        cf_list: Channels, 16 bytes or none.
    """

    app_nonce: int
    net_id: int
    dev_addr: int
    dl_settings: int = 0
    rx_delay: int = 0
    cf_list: bytes = b""

    @property
    def opt_neg(self) -> bool:
        """Return whether the session is one of 1.1."""
        return bool(self.dl_settings & 0x80)

    def build(self) -> bytes:
        """Return the bytes between MHDR and MIC, before encryption."""
        return b"".join(
            (
                self.app_nonce.to_bytes(3, "little"),
                self.net_id.to_bytes(3, "little"),
                self.dev_addr.to_bytes(4, "little"),
                bytes([self.dl_settings, self.rx_delay]),
                self.cf_list,
            )
        )

    @classmethod
    def parse(cls, fields: bytes) -> JoinAcceptFields:
        """Parse the bytes between MHDR and MIC, decrypted: 12, or 28 with a channel list."""
        return cls(
            app_nonce=int.from_bytes(fields[:3], "little"),
            net_id=int.from_bytes(fields[3:6], "little"),
            dev_addr=int.from_bytes(fields[6:10], "little"),
            dl_settings=fields[10],
            rx_delay=fields[11],
            cf_list=fields[12:],
        )


def dl_settings(*, rx1_dr_offset: int, rx2_dr: int, opt_neg: bool = False) -> int:
    """Return the byte DLSettings."""
    return opt_neg << 7 | rx1_dr_offset << 4 | rx2_dr


def parse_frame(phy_payload: bytes) -> Frame:
    """Parse a PHYPayload.

    Raises:
        FrameError: It is none.
    """
    if not phy_payload:
        raise FrameError("the frame is empty")
    if len(phy_payload) > PHY_PAYLOAD_MAX:
        raise FrameError(f"{len(phy_payload)} bytes are no frame, at most {PHY_PAYLOAD_MAX} are")
    mhdr = phy_payload[0]
    m_type = MType(mhdr >> 5)
    if m_type is MType.PROPRIETARY:
        return ProprietaryFrame(mhdr=mhdr, payload=phy_payload[1:])
    if mhdr & _MAJOR:
        raise FrameError(f"major version {mhdr & _MAJOR} is unknown")
    if m_type is MType.JOIN_REQUEST:
        return _join_request(phy_payload)
    if m_type is MType.JOIN_ACCEPT:
        _check_length("a join accept", phy_payload, *_JOIN_ACCEPT_BYTES)
        return JoinAcceptFrame(mhdr=mhdr, encrypted=phy_payload[1:])
    if m_type is MType.REJOIN_REQUEST:
        return _rejoin_request(phy_payload)
    return _data_frame(phy_payload)


def _data_frame(phy_payload: bytes) -> DataFrame:
    if len(phy_payload) < _DATA_MIN:
        raise FrameError(f"{len(phy_payload)} bytes are no data frame, it has {_DATA_MIN} at least")
    mhdr, dev_addr, f_ctrl, f_cnt = _DATA_HEAD.unpack_from(phy_payload)
    options_end = 8 + (f_ctrl & _F_OPTS_LENGTH)
    end = len(phy_payload) - MIC_BYTES
    if options_end > end:
        raise FrameError("FOpts is longer than the frame")
    f_port = phy_payload[options_end] if options_end < end else None
    f_opts = phy_payload[8:options_end]
    if f_port == 0 and f_opts:
        raise FrameError("FPort 0 and FOpts exclude each other")
    return DataFrame(
        mhdr=mhdr,
        dev_addr=dev_addr,
        f_ctrl=f_ctrl & ~_F_OPTS_LENGTH,
        f_cnt=f_cnt,
        f_opts=f_opts,
        f_port=f_port,
        frm_payload=phy_payload[options_end + 1 : end],
        mic=phy_payload[end:],
    )


def _join_request(phy_payload: bytes) -> JoinRequestFrame:
    _check_length("a join request", phy_payload, _JOIN_REQUEST_BYTES)
    mhdr, join_eui, dev_eui, dev_nonce = _JOIN_REQUEST.unpack_from(phy_payload)
    return JoinRequestFrame(
        mhdr=mhdr,
        join_eui=join_eui,
        dev_eui=dev_eui,
        dev_nonce=dev_nonce,
        mic=phy_payload[-MIC_BYTES:],
    )


def _rejoin_request(phy_payload: bytes) -> RejoinRequestFrame:
    rejoin_type = phy_payload[1] if len(phy_payload) > 1 else -1
    if rejoin_type not in _REJOIN_BYTES:
        raise FrameError("a rejoin request has a type from 0 to 2")
    _check_length(
        f"a rejoin request of type {rejoin_type}", phy_payload, _REJOIN_BYTES[rejoin_type]
    )
    end = 10 if rejoin_type == 1 else 5
    return RejoinRequestFrame(
        mhdr=phy_payload[0],
        rejoin_type=rejoin_type,
        home=int.from_bytes(phy_payload[2:end], "little"),
        dev_eui=int.from_bytes(phy_payload[end : end + 8], "little"),
        rj_count=int.from_bytes(phy_payload[end + 8 : end + 10], "little"),
        mic=phy_payload[-MIC_BYTES:],
    )


def _check_length(what: str, phy_payload: bytes, *lengths: int) -> None:
    if len(phy_payload) not in lengths:
        wanted = " or ".join(map(str, lengths))
        raise FrameError(f"{len(phy_payload)} bytes are not {what}, which has {wanted}")
