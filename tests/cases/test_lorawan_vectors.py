"""Every vector of `lorawan_vectors.json`, through the frames and cryptography of the head."""

import pytest

from edgehub.heads.lora.station_messages import (
    data_message,
    join_request_message,
    phy_payload_of,
)
from edgehub.lora import crypto
from edgehub.lora.airtime import lora_airtime
from edgehub.lora.channels import mask_cf_list, masks_72
from edgehub.lora.counters import full_counter
from edgehub.lora.frames import (
    DataFrame,
    Direction,
    FrameError,
    JoinAcceptFields,
    JoinAcceptFrame,
    JoinRequestFrame,
    RejoinRequestFrame,
    parse_frame,
)
from edgehub.lora.identifiers import NetId, parse_station_id
from edgehub.lora.mac_commands import MacCommand, parse_mac_commands
from edgehub.lora.session import session_of

CASES = "lorawan_vectors.json"


def hexed(text):
    """Return the bytes of hex digits."""
    return bytes.fromhex(text)


def number(text):
    """Return the number of hex digits in display order."""
    return int(text, 16)


def airtime(inputs):
    """Return the times of a frame."""
    times = lora_airtime(inputs.pop("bytes"), **inputs)
    return {"ms": times.ms, "symbol_ms": times.symbol_ms, "preamble_ms": times.preamble_ms}


def cf_list(inputs):
    """Return channel lists of type 1."""
    return {"cf_list": [mask_cf_list(channels).hex() for channels in inputs["enabled_channels"]]}


def described(frame: DataFrame):
    """Return the members of a data frame as the vectors have them."""
    flags = {"adr": frame.adr, "ack": frame.ack, "f_opts_len": len(frame.f_opts)}
    if frame.direction is Direction.UP:
        flags |= {"adr_ack_req": frame.adr_ack_req, "class_b": frame.class_b}
    else:
        flags["f_pending"] = frame.f_pending
    return {
        "mhdr": f"{frame.mhdr:02x}",
        "m_type": frame.m_type.name.lower(),
        "major": frame.mhdr & 3,
        "direction": frame.direction.name.lower(),
        "dev_addr": f"{frame.dev_addr:08x}",
        "f_ctrl": flags,
        "f_cnt_16": frame.f_cnt,
        "f_opts": frame.f_opts.hex(),
        "f_port": frame.f_port,
        "frm_payload": frame.frm_payload.hex(),
        "mic": frame.mic.hex(),
    }


def data_frame(inputs):
    """Parse, check and decrypt a data frame."""
    phy_payload = hexed(inputs["phy_payload"])
    frame = parse_frame(phy_payload)
    assert isinstance(frame, DataFrame)
    assert frame.build() == phy_payload
    f_cnt = inputs["f_cnt_32"]
    assert full_counter(frame.f_cnt, max(f_cnt - 16_384, 0)) == f_cnt
    where = (frame.direction, frame.dev_addr, f_cnt)
    found = described(frame) | {"mic_ok": crypto.is_mic(expected_mic(inputs, frame), frame.mic)}
    network_key = inputs.get("nwk_s_enc_key", inputs.get("nwk_s_key"))
    key = network_key if frame.f_port == 0 else inputs.get("app_s_key")
    if frame.f_port is not None and key is not None:
        plain = crypto.crypt_payload(hexed(key), frame.frm_payload, *where)
        found["plaintext"] = plain.hex()
    if "f_opts_block_byte_4" in inputs:
        kind = crypto.f_opts_kind(frame)
        assert kind == inputs["f_opts_block_byte_4"]
        plain = crypto.crypt_f_opts(hexed(network_key), frame.f_opts, *where, kind=kind)
        found["f_opts_plain"] = plain.hex()
    return found


def expected_mic(inputs, frame: DataFrame):
    """Return the MIC that a frame should have."""
    message, dev_addr, f_cnt = frame.signed_part(), frame.dev_addr, inputs["f_cnt_32"]
    conf_f_cnt = inputs.get("conf_f_cnt", 0)
    if "f_nwk_s_int_key" in inputs:
        return crypto.uplink_mic_1_1(
            hexed(inputs["f_nwk_s_int_key"]),
            hexed(inputs["s_nwk_s_int_key"]),
            message,
            dev_addr,
            f_cnt,
            tx_dr=inputs["tx_dr"],
            tx_ch=inputs["tx_ch"],
            conf_f_cnt=conf_f_cnt,
        )
    key = hexed(inputs.get("s_nwk_s_int_key", inputs.get("nwk_s_key")))
    where = (frame.direction, dev_addr, f_cnt)
    return crypto.data_mic(key, message, *where, conf_f_cnt=conf_f_cnt)


def negative(inputs):
    """Check frames with the counter that the server expects."""

    def is_right(text):
        try:
            frame = parse_frame(hexed(text))
        except FrameError:
            return False
        assert isinstance(frame, DataFrame)
        f_cnt = full_counter(frame.f_cnt, inputs["server_next_f_cnt_32"])
        return crypto.is_mic(expected_mic({**inputs, "f_cnt_32": f_cnt}, frame), frame.mic)

    assert is_right(inputs["good"])
    return {"mic_ok": [is_right(frame["phy_payload"]) for frame in inputs["frames"]]}


def station_json(inputs):
    """Turn a station's message into a frame, and a frame into a station's message."""
    found = {}
    if "json" in inputs:
        found["phy_payload"] = phy_payload_of(inputs["json"]).hex()
    if "phy_payload" in inputs:
        frame = parse_frame(hexed(inputs["phy_payload"]))
        joins = isinstance(frame, JoinRequestFrame)
        found["json"] = (join_request_message if joins else data_message)(frame)
        assert phy_payload_of(found["json"]).hex() == inputs["phy_payload"]
    return found


def id6(inputs):
    """Parse ids of stations."""
    return {"euis": [f"{parse_station_id(text):016x}" for text in inputs["texts"]]}


def join_accept(inputs):
    """Build a join accept, and open it again as its device does."""
    key, mhdr = hexed(inputs["key"]), number(inputs["mhdr"])
    given = inputs["fields"]
    fields = JoinAcceptFields(
        app_nonce=number(given["app_nonce"]),
        net_id=number(given["net_id"]),
        dev_addr=number(given["dev_addr"]),
        dl_settings=given["dl_settings"],
        rx_delay=given["rx_delay"],
        cf_list=hexed(given.get("cf_list", "")),
    )
    text = fields.build()
    prefix = b""
    mic_key = key
    if "js_int_key" in inputs:
        mic_key = hexed(inputs["js_int_key"])
        prefix = crypto.opt_neg_prefix(number(inputs["join_eui"]), number(inputs["dev_nonce"]))
    mic = crypto.accept_mic(mic_key, mhdr, text, prefix=prefix)
    frame = JoinAcceptFrame(mhdr=mhdr, encrypted=crypto.seal_accept(key, text, mic))
    parsed = parse_frame(frame.build())
    assert parsed == frame
    assert crypto.open_accept(key, frame.encrypted) == (fields, mic)
    return {
        "phy_payload": frame.build().hex(),
        "mic": mic.hex(),
        "decrypted": (text + mic).hex(),
    }


def join_request(inputs):
    """Parse a join request and check it."""
    frame = parse_frame(hexed(inputs["phy_payload"]))
    assert isinstance(frame, JoinRequestFrame)
    assert frame.build().hex() == inputs["phy_payload"]
    mic = crypto.request_mic(hexed(inputs["app_key"]), frame.signed_part())
    return {
        "mhdr": f"{frame.mhdr:02x}",
        "m_type": "join_request",
        "join_eui": f"{frame.join_eui:016x}",
        "dev_eui": f"{frame.dev_eui:016x}",
        "dev_nonce": frame.dev_nonce,
        "mic": frame.mic.hex(),
        "mic_ok": crypto.is_mic(mic, frame.mic),
    }


def rejoin_request(inputs):
    """Parse a rejoin request and check it."""
    frame = parse_frame(hexed(inputs["phy_payload"]))
    assert isinstance(frame, RejoinRequestFrame)
    assert frame.build().hex() == inputs["phy_payload"]
    mic = crypto.request_mic(hexed(inputs["key"]), frame.signed_part())
    home = (
        {"join_eui": f"{frame.home:016x}"}
        if frame.rejoin_type == 1
        else {"net_id": f"{frame.home:06x}"}
    )
    return {
        "rejoin_type": frame.rejoin_type,
        **home,
        "dev_eui": f"{frame.dev_eui:016x}",
        "rj_count": frame.rj_count,
        "mic": frame.mic.hex(),
        "mic_ok": crypto.is_mic(mic, frame.mic),
    }


def join_server_keys(inputs):
    """Derive the keys of rejoins."""
    key, dev_eui = hexed(inputs["nwk_key"]), number(inputs["dev_eui"])
    return {
        "js_enc_key": crypto.js_enc_key(key, dev_eui).hex(),
        "js_int_key": crypto.js_int_key(key, dev_eui).hex(),
    }


def mac_command(inputs):
    """Build a MAC command, and parse it again."""
    given = dict(inputs["command"])
    command = MacCommand(name=given.pop("name"), values=given)
    text = command.build()
    ways = [parse_mac_commands(text, direction) for direction in Direction]
    assert ([command], b"") in ways
    return {"bytes": text.hex()}


def channel_mask(inputs):
    """Find the masks that leave the wanted channels."""
    device = channels(inputs["device_channels"])
    found = [masks_72(device, channels(wanted)) for wanted in inputs["wanted"]]
    return {"requests": [[list(mask) for mask in masks] for masks in found]}


def channels(text):
    """Return the channels of ranges such as `0-7,64`."""
    found = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def mic_only(inputs):
    """Return the MIC of the same bytes in both directions."""
    key, message = hexed(inputs["nwk_s_key"]), hexed(inputs["message"])
    rest = (number(inputs["dev_addr"]), inputs["f_cnt_32"])
    return {
        f"mic_{each.name.lower()}": crypto.data_mic(key, message, each, *rest).hex()
        for each in Direction
    }


def net_id(inputs):
    """Split NetIDs."""
    items = []
    for text in inputs["net_ids"]:
        parts = NetId.of(number(text))
        fields = JoinAcceptFields(app_nonce=0, net_id=number(text), dev_addr=0)
        items.append([parts.kind, parts.identifier.hex(), fields.build()[3:6].hex()])
    return {"items": items}


def session_keys_1_0(inputs):
    """Derive the keys of a session of 1.0."""
    key = hexed(inputs["app_key"])
    fields = JoinAcceptFields(
        app_nonce=number(inputs["app_nonce"]), net_id=number(inputs["net_id"]), dev_addr=0
    )
    keys = crypto.JoinKeys(key, key, join_eui=0, dev_eui=0, dev_nonce=number(inputs["dev_nonce"]))
    session = session_of(keys, fields, rx_delay=1)
    return {"nwk_s_key": session.s_nwk_s_int_key, "app_s_key": session.app_s_key}


def session_keys_1_1(inputs):
    """Derive the keys of a session of 1.1."""
    fields = JoinAcceptFields(
        app_nonce=number(inputs["join_nonce"]), net_id=0, dev_addr=0, dl_settings=0x80
    )
    keys = crypto.JoinKeys(
        hexed(inputs["app_key"]),
        hexed(inputs["nwk_key"]),
        join_eui=number(inputs["join_eui"]),
        dev_eui=0,
        dev_nonce=number(inputs["dev_nonce"]),
    )
    session = session_of(keys, fields, rx_delay=1)
    return {
        name: getattr(session, name)
        for name in ("f_nwk_s_int_key", "app_s_key", "s_nwk_s_int_key", "nwk_s_enc_key")
    }


ADAPTERS = {
    "airtime": airtime,
    "cf_list": cf_list,
    "data_frame_1_0": data_frame,
    "data_frame_1_1": data_frame,
    "id6": id6,
    "join_accept": join_accept,
    "join_request": join_request,
    "join_server_keys": join_server_keys,
    "mac_command": mac_command,
    "mic_only": mic_only,
    "negative": negative,
    "net_id": net_id,
    "rejoin_request": rejoin_request,
    "session_keys_1_0": session_keys_1_0,
    "session_keys_1_1": session_keys_1_1,
    "station_json": station_json,
    "us915_channel_mask": channel_mask,
}


def test_vector_comes_out_as_published(case):
    """Every expected member comes out; what a vector leaves out is not compared."""
    found = ADAPTERS[case["category"]](dict(case["inputs"]))
    expected = case["expected"]
    missing = expected.keys() - found.keys()
    assert not missing
    for name, value in expected.items():
        close = pytest.approx(value) if isinstance(value, float) else value
        assert found[name] == close, name
