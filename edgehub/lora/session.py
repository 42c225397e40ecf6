"""Frames within a session: which counter one has, what it says, and how an answer is built.

Pure functions on a session's keys, 1.0 or 1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from edgehub.lora import crypto
from edgehub.lora.counters import full_counter
from edgehub.lora.device import LorawanSession
from edgehub.lora.frames import F_OPTS_MAX, Direction
from edgehub.lora.mac_commands import parse_mac_commands

if TYPE_CHECKING:
    from edgehub.lora.frames import DataFrame, JoinAcceptFields
    from edgehub.lora.mac_commands import MacCommand

_UPPER: Final = ~0xFFFF


class UplinkRate(NamedTuple):
    """On what an uplink was sent; the MIC of 1.1 covers it."""

    dr: int
    channel: int


NO_RATE: Final = UplinkRate(0, 0)


class PlainFrame(Struct, frozen=True, kw_only=True):
    """What a frame says.

    Attributes:
        payload: Of the application, empty on FPort 0.
        commands: MAC commands as far as they are known.
    """

    payload: bytes
    commands: list[MacCommand]


def session_of(keys: crypto.JoinKeys, fields: JoinAcceptFields, *, rx_delay: int) -> LorawanSession:
    """Return the session that a join accept begins, on either side.

    Args:
        keys: Root keys, and the request.
        fields: Of the accept.
        rx_delay: Seconds until RX1.
    """
    nonce, dev_nonce = fields.app_nonce.to_bytes(3, "little"), keys.dev_nonce.to_bytes(2, "little")
    if fields.opt_neg:
        text = nonce + keys.join_eui.to_bytes(8, "little") + dev_nonce
        network = [crypto.derive(keys.nwk_key, kind, text).hex() for kind in (0x01, 0x03, 0x04)]
    else:
        # Of 1.0, also those of a 1.1 device without OptNeg.
        text = nonce + fields.net_id.to_bytes(3, "little") + dev_nonce
        network = [crypto.derive(keys.nwk_key, 0x01, text).hex()] * 3
    app_key = keys.app_key if fields.opt_neg else keys.nwk_key
    return LorawanSession(
        is_1_1=fields.opt_neg,
        f_nwk_s_int_key=network[0],
        s_nwk_s_int_key=network[1],
        nwk_s_enc_key=network[2],
        app_s_key=crypto.derive(app_key, 0x02, text).hex(),
        rx_delay=rx_delay,
    )


def find_counter(
    session: LorawanSession, frame: DataFrame, last: int, rate: UplinkRate
) -> int | None:
    """Return the full counter with which an uplink's MIC is right, None = with none.

    The next possible one is tried first, then older ones, so that a frame of a device that has
    started again, or one played back, is known for what it is.

    Args:
        session: Of the device.
        frame: The uplink.
        last: Last counter that was heard.
        rate: On what it was sent.
    """
    tried = dict.fromkeys(
        (full_counter(frame.f_cnt, last), last & _UPPER | frame.f_cnt, frame.f_cnt)
    )
    for f_cnt in tried:
        if f_cnt >= 2**32:
            continue
        mic = frame_mic(session, frame, f_cnt, rate, conf_f_cnt=session.confirmed_f_cnt_down)
        if crypto.is_mic(mic, frame.mic):
            return f_cnt
    return None


def open_frame(session: LorawanSession, frame: DataFrame, f_cnt: int) -> PlainFrame:
    """Decrypt a data frame."""
    where = (frame.direction, frame.dev_addr, f_cnt)
    network_key = bytes.fromhex(session.nwk_s_enc_key)
    key = bytes.fromhex(session.app_s_key) if frame.f_port else network_key
    payload = crypto.crypt_payload(key, frame.frm_payload, *where)
    options = frame.f_opts
    if session.is_1_1 and options:
        options = crypto.crypt_f_opts(network_key, options, *where, kind=crypto.f_opts_kind(frame))
    if frame.f_port == 0:
        options, payload = payload, b""
    commands, _ = parse_mac_commands(options, frame.direction)
    return PlainFrame(payload=payload, commands=commands)


def build_frame(
    session: LorawanSession,
    frame: DataFrame,
    f_cnt: int,
    rate: UplinkRate = NO_RATE,
    *,
    conf_f_cnt: int = 0,
) -> bytes:
    """Encrypt and sign a data frame.

    Args:
        session: Of the device.
        frame: Plain; MAC commands that do not fit into FOpts become its payload on FPort 0.
        f_cnt: Full counter.
        rate: On what an uplink is sent.
        conf_f_cnt: Counter that it acknowledges, of the other direction.

    Raises:
        FrameError: It is too long.
    """
    if len(frame.f_opts) > F_OPTS_MAX:
        frame = replace(frame, f_port=0, frm_payload=frame.f_opts, f_opts=b"")
    where = (frame.direction, frame.dev_addr, f_cnt)
    network_key = bytes.fromhex(session.nwk_s_enc_key)
    key = bytes.fromhex(session.app_s_key) if frame.f_port else network_key
    frame = replace(frame, frm_payload=crypto.crypt_payload(key, frame.frm_payload, *where))
    if session.is_1_1 and frame.f_opts:
        kind = crypto.f_opts_kind(frame)
        options = crypto.crypt_f_opts(network_key, frame.f_opts, *where, kind=kind)
        frame = replace(frame, f_opts=options)
    mic = frame_mic(session, frame, f_cnt, rate, conf_f_cnt=conf_f_cnt)
    return replace(frame, mic=mic).build()


def frame_mic(
    session: LorawanSession,
    frame: DataFrame,
    f_cnt: int,
    rate: UplinkRate = NO_RATE,
    *,
    conf_f_cnt: int = 0,
) -> bytes:
    """Return the MIC that a data frame should have.

    Args:
        session: Of the device.
        frame: The frame.
        f_cnt: Its full counter.
        rate: On what an uplink was sent.
        conf_f_cnt: Counter that it acknowledges, of the other direction.
    """
    message, where = frame.signed_part(), (frame.direction, frame.dev_addr, f_cnt)
    acknowledged = conf_f_cnt & 0xFFFF if session.is_1_1 and frame.ack else 0
    network_key = bytes.fromhex(session.f_nwk_s_int_key)
    own_key = bytes.fromhex(session.s_nwk_s_int_key)
    if frame.direction is Direction.DOWN or not session.is_1_1:
        return crypto.data_mic(own_key, message, *where, conf_f_cnt=acknowledged)
    return crypto.uplink_mic_1_1(
        network_key,
        own_key,
        message,
        frame.dev_addr,
        f_cnt,
        tx_dr=rate.dr,
        tx_ch=rate.channel,
        conf_f_cnt=acknowledged,
    )
