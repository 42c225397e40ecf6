"""A frame described member by member, as far as its keys are known.

Pure functions, for operators who look for a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, to_builtins

from edgehub.lora import crypto
from edgehub.lora.frames import (
    DataFrame,
    Direction,
    FrameError,
    JoinAcceptFrame,
    JoinRequestFrame,
    MType,
    ProprietaryFrame,
    RejoinRequestFrame,
    parse_frame,
)
from edgehub.lora.identifiers import NetId, dev_addr_text, eui_text
from edgehub.lora.session import NO_RATE, UplinkRate, frame_mic, open_frame

if TYPE_CHECKING:
    from edgehub.lora.device import LorawanSession

UPPER_HALVES_TRIED: Final = 16


class FrameKeys(Struct, frozen=True, kw_only=True):
    """What is known of a frame's device.

    Attributes:
        root_key: AppKey, in 1.1 NwkKey; None = unknown.
        session: Of a data frame, None = unknown.
        f_cnt: Full counter of a data frame, None = found by its MIC.
        rate: On what an uplink of 1.1 was sent.
    """

    root_key: bytes | None = None
    session: LorawanSession | None = None
    f_cnt: int | None = None
    rate: UplinkRate = NO_RATE


def decode_frame(phy_payload: bytes, keys: FrameKeys) -> dict[str, Any]:
    """Describe a frame; `mic_ok` is None where no key was given.

    Raises:
        FrameError: It is no frame, or the counter is not of it.
    """
    frame = parse_frame(phy_payload)
    m_type = MType(frame.mhdr >> 5)
    document: dict[str, Any] = {"m_type": m_type.name.lower(), "bytes": len(phy_payload)}
    if isinstance(frame, DataFrame):
        return document | _data(frame, keys)
    if isinstance(frame, JoinAcceptFrame):
        return document | _accept(frame, keys.root_key)
    if isinstance(frame, ProprietaryFrame):
        return document | {"payload": frame.payload.hex()}
    document |= {"dev_eui": eui_text(frame.dev_eui), "mic": frame.mic.hex()}
    if isinstance(frame, JoinRequestFrame):
        document |= {"join_eui": eui_text(frame.join_eui), "dev_nonce": frame.dev_nonce}
    else:
        assert isinstance(frame, RejoinRequestFrame)
        document |= {"rejoin_type": frame.rejoin_type, "rj_count": frame.rj_count}
    return document | {"mic_ok": _request_is_right(frame, keys.root_key)}


def _request_is_right(
    frame: JoinRequestFrame | RejoinRequestFrame, key: bytes | None
) -> bool | None:
    # The keys of rejoin requests are those of sessions.
    if key is None or isinstance(frame, RejoinRequestFrame):
        return None
    return crypto.is_mic(crypto.request_mic(key, frame.signed_part()), frame.mic)


def _accept(frame: JoinAcceptFrame, key: bytes | None) -> dict[str, Any]:
    if key is None:
        return {"encrypted": frame.encrypted.hex(), "mic_ok": None}
    fields, mic = crypto.open_accept(key, frame.encrypted)
    right = crypto.is_mic(crypto.accept_mic(key, frame.mhdr, fields.build()), mic)
    return {
        "app_nonce": fields.app_nonce,
        "net_id": f"{fields.net_id:06X}",
        "net_id_type": NetId.of(fields.net_id).kind,
        "dev_addr": dev_addr_text(fields.dev_addr),
        "opt_neg": fields.opt_neg,
        "rx1_dr_offset": fields.dl_settings >> 4 & 7,
        "rx2_dr": fields.dl_settings & 0x0F,
        "rx_delay": fields.rx_delay or 1,
        "cf_list": fields.cf_list.hex(),
        "mic": mic.hex(),
        # That of 1.1 covers the request too.
        "mic_ok": None if fields.opt_neg and not right else right,
    }


def _data(frame: DataFrame, keys: FrameKeys) -> dict[str, Any]:
    flags = {"adr": frame.adr, "ack": frame.ack}
    if frame.direction is Direction.UP:
        flags |= {"adr_ack_req": frame.adr_ack_req, "class_b": frame.class_b}
    else:
        flags["f_pending"] = frame.f_pending
    document: dict[str, Any] = {
        "dev_addr": dev_addr_text(frame.dev_addr),
        **flags,
        "f_cnt": frame.f_cnt,
        "f_opts": frame.f_opts.hex(),
        "f_port": frame.f_port,
        "frm_payload": frame.frm_payload.hex(),
        "mic": frame.mic.hex(),
    }
    if keys.session is None:
        return document | {"mic_ok": None}
    f_cnt = _counter(frame, keys)
    document["mic_ok"] = f_cnt is not None
    if f_cnt is None:
        return document
    plain = open_frame(keys.session, frame, f_cnt)
    return document | {
        "f_cnt": f_cnt,
        "payload": plain.payload.hex(),
        "commands": [to_builtins(command) for command in plain.commands],
    }


def _counter(frame: DataFrame, keys: FrameKeys) -> int | None:
    assert keys.session is not None
    if keys.f_cnt is not None and keys.f_cnt & 0xFFFF != frame.f_cnt:
        raise FrameError(f"its counter ends with {frame.f_cnt}, that of {keys.f_cnt} does not")
    tried = (
        [keys.f_cnt]
        if keys.f_cnt is not None
        else [upper << 16 | frame.f_cnt for upper in range(UPPER_HALVES_TRIED)]
    )
    for f_cnt in tried:
        mic = frame_mic(keys.session, frame, f_cnt, keys.rate)
        if crypto.is_mic(mic, frame.mic):
            return f_cnt
    return None
