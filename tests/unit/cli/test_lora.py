"""`edgehub lora decode` and `simulate`, as far as they need no hub."""

from __future__ import annotations

import base64
import json

import pytest
from click.testing import CliRunner

from edgehub.cli.lora import lora
from edgehub.lora.device import LorawanSession, MacVersion
from edgehub.lora.device_import import parse_devices
from edgehub.lora.frames import DataFrame, MType, mhdr_of
from edgehub.lora.session import build_frame

FRAME = "804e1f0b268001000a19553a434c24e059"
KEYS = (
    *("--nwk-s-key", "3c8f262739bfe3b7bc0826991ad0504d"),
    *("--app-s-key", "10f2a1d4c6e7b8990a1b2c3d4e5f6071"),
)


def decoded(*arguments: str, command: str = "decode", code: int = 0) -> dict:
    """Run it and return its document."""
    result = CliRunner().invoke(lora, [command, *arguments, "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    assert result.return_value == code
    return json.loads(result.output)


def test_versions_are_written_as_they_are_shown() -> None:
    """`--mac-version 1.0.4`, not the name of a constant."""
    text = CliRunner().invoke(lora, ["device", "add", "--help"]).output
    assert f"[{'|'.join(MacVersion)}]" in text


def test_a_data_frame_is_read_with_its_counter_found() -> None:
    """Hex and Base64 are one; without keys the payload stays as it is."""
    document = decoded(FRAME, *KEYS)
    assert (document["f_cnt"], document["payload"], document["mic_ok"]) == (65537, "016700e3", True)
    assert decoded(base64.b64encode(bytes.fromhex(FRAME)).decode(), *KEYS) == document
    plain = decoded(FRAME)
    assert (plain["f_cnt"], plain["mic_ok"]) == (1, None)
    assert "payload" not in plain


@pytest.mark.parametrize(("sf", "milliseconds"), [(7, 51.456), (12, 1318.912)])
def test_the_time_on_air_is_that_of_the_usual_calculators(sf: int, milliseconds: float) -> None:
    """17 bytes at 125 kHz, with the optimisation for low data rates where gateways have it."""
    document = decoded(FRAME, "--sf", str(sf))
    assert document["airtime_ms"] == pytest.approx(milliseconds, abs=0.001)


def test_mac_commands_are_named() -> None:
    """In FOpts, with their members."""
    document = decoded("404e1f0b26830700020307e10d42ff", *KEYS)
    assert [each["name"] for each in document["commands"]] == ["LinkCheckReq", "LinkADRAns"]


def test_a_wrong_mic_is_an_exit_code() -> None:
    """Nothing of the payload is shown then."""
    document = decoded(FRAME[:-1] + "8", *KEYS, code=1)
    assert document["mic_ok"] is False
    assert "payload" not in document


@pytest.mark.parametrize(
    ("frame", "key", "expected"),
    [
        (
            "00010000000000000001000000000000000ce83685eb17",
            "01" * 16,
            {"m_type": "join_request", "dev_eui": "0000000000000001", "dev_nonce": 59404},
        ),
        (
            "20493eeb51fba2116f810edb3742975142",
            "00112233445566778899aabbccddeeff",
            {"m_type": "join_accept", "dev_addr": "02031980", "net_id": "221101"},
        ),
    ],
)
def test_joins_are_read_with_the_root_key(frame: str, key: str, expected: dict) -> None:
    """Request and accept."""
    document = decoded(frame, "--app-key", key)
    assert document["mic_ok"] is True
    assert document | expected == document


def test_a_rejoin_request_is_read_without_its_key() -> None:
    """Its key is one of the session."""
    document = decoded("c0020302010807060504030201db003c8642ae")
    assert (document["rejoin_type"], document["rj_count"], document["mic_ok"]) == (2, 219, None)


def test_a_payload_is_decoded_by_a_script(tmp_path):
    """As a hub does it; what fails is said with exit code 1."""
    script = tmp_path / "counter.js"
    script.write_text(
        "function decodeUplink(i) { return { data: { first: i.bytes[0] } } }", "utf-8"
    )
    document = decoded(FRAME, *KEYS, "--decoder", str(script))
    assert document["decoded_payload"] == {"first": bytes.fromhex(document["payload"])[0]}
    script.write_text("function decodeUplink(i) { return { errors: ['no'] } }", "utf-8")
    said = decoded(FRAME, *KEYS, "--decoder", str(script), code=1)["decode_error"]
    assert said == f"{script}: no"


def test_a_message_is_encoded_by_a_script(tmp_path):
    """And a downlink decoded by the same one; what fails is said with exit code 1."""
    script = tmp_path / "valve.js"
    script.write_text(
        "function decodeUplink(i) { return { data: {} } }"
        "function encodeDownlink(i) { return { bytes: [i.data.open, i.fPort], fPort: 3 } }"
        "function decodeDownlink(i) { return { data: { port: i.fPort, n: i.bytes.length } } }",
        "utf-8",
    )
    options = ("--decoder", str(script), "--port", "7")
    document = decoded('{"open": 1}', *options, command="encode")
    assert document == {"f_port": 3, "payload": "0107", "warnings": []}
    document = decoded("{}", *options, command="encode", code=1)
    assert "list of bytes" in document["encode_error"]
    session = LorawanSession(
        f_nwk_s_int_key=KEYS[1], s_nwk_s_int_key=KEYS[1], nwk_s_enc_key=KEYS[1], app_s_key=KEYS[3]
    )
    down = DataFrame(
        mhdr=mhdr_of(MType.UNCONFIRMED_DATA_DOWN),
        dev_addr=7,
        f_ctrl=0,
        f_cnt=1,
        f_opts=b"",
        f_port=5,
        frm_payload=b"abc",
    )
    frame = build_frame(session, down, 1, conf_f_cnt=0).hex()
    assert decoded(frame, *KEYS, "--decoder", str(script))["decoded_payload"] == {
        "port": 5,
        "n": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("decode", "zz"), "neither hex digits nor Base64"),
        (("decode", "40"), "1 bytes are no data frame"),
        (("decode", FRAME, "--nwk-s-key", "3c"), "wants --nwk-s-key and --app-s-key"),
        (("decode", FRAME, "--app-s-key", "3c"), "wants --nwk-s-key and --app-s-key"),
        (("decode", FRAME, *KEYS[:3], "3c"), "want 32 hex digits"),
        (("decode", FRAME, *KEYS, "--f-cnt", "2"), "its counter ends with 1"),
        (("encode", "[" * 100_000, "--decoder", __file__), "not JSON: maximum recursion"),
        (("encode", "[1]", "--decoder", __file__), "want a JSON object"),
        (("simulate",), "want a station"),
        (("simulate", "localhost/1"), "want ws://HOST:PORT/ID"),
        (("simulate", "ws://localhost:1/x:y"), "want a number of 64 bits"),
    ],
)
def test_wrong_use_says_what_is_wanted(arguments: tuple[str, ...], fault: str) -> None:
    """Frames, keys, counters and stations."""
    result = CliRunner().invoke(lora, arguments)
    assert result.exit_code == 2
    assert fault in result.output


def test_the_list_of_simulated_devices_can_be_imported() -> None:
    """The same seed makes the same devices."""
    lists = [CliRunner().invoke(lora, ["simulate", "--devices", "3", "--list"]) for _ in range(2)]
    assert lists[0].output == lists[1].output
    assert [each.joins for each in parse_devices(lists[0].output)] == [True] * 3
