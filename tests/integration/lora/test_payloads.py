"""Payloads of devices with a decoder: what the message upstream has, and what a failure costs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import SystemClock
from edgehub.decoders.decoders import Decoders
from edgehub.errors import ConfigurationError
from edgehub.heads.lora.payloads import DecodedUplink, decode_body
from edgehub.hub.lora import LoraPart
from edgehub.lab.radio.device import ReceivedDownlink
from edgehub.settings import Settings
from edgehub.settings.configuration import read_configuration
from edgehub.settings.origin import LoadedSettings
from edgehub.telemetry.log_limit import LogLimit
from tests.support.lora import STATIONS, a_station, answer, lora_hub, personalised
from tests.support.routes import a_message, matches

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.lab.radio.device import SimulatedLorawanDevice
    from edgehub.lab.radio.station import SimulatedStation
    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001
SCRIPTS = {
    "level": "function decodeUplink(i) { return { data: { cm: i.bytes[0] }, warnings: ['low'] } }",
    "plain": "function decodeUplink(i) { return { data: { port: i.fPort } } }",
    "picky": "function decodeUplink(i) { return { errors: ['unknown FPort'] } }",
    "valve": (
        "function decodeUplink(i) { return { data: {} } }"
        "function encodeDownlink(i) {"
        " if (!('open' in i.data)) return { errors: ['no open'] };"
        " return { bytes: [i.data.open ? 255 : 0], fPort: i.data.port } }"
    ),
    "hangs": "function decodeUplink(i) { while (true) {} }",
}


def decoders(folder: Path, **scripts: str) -> str:
    """Write scripts; returns the setting that names their folder."""
    place = folder / "decoders"
    place.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (place / f"{name}.js").write_text(script, "utf-8")
    return str(place)


def payloads(hub: BrokerHub) -> dict[str, int]:
    """Return payloads by what became of them."""
    return dict(hub.hub.status()["lora"]["payloads"])


async def ready(hub: BrokerHub) -> None:
    """Wait until the process of decoders has started."""
    [head] = [part.head for part in hub.hub.parts if isinstance(part, LoraPart)]
    assert head is not None
    await hub.until(lambda: head.server.decoders.is_ready)


async def row_of(
    hub: BrokerHub, station: SimulatedStation, device: SimulatedLorawanDevice, f_port: int
) -> dict[str, Any]:
    """Send a frame and return its row; once more where a busy machine decodes too slowly."""
    while True:
        before = hub.depth()
        await station.hear(device.uplink(b"\x07\x02", f_port=f_port))
        await hub.until(lambda before=before: hub.depth() > before)
        row = (await hub.rows())[-1]
        if "no result within" not in row["properties"].get("loraDecodeError", ""):
            return dict(row)


def body(row: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON body of a row."""
    return dict(json.loads(row["body"]))


async def test_decoded_payloads_go_upstream_beside_the_raw_ones(tmp_path: Path) -> None:
    """As JSON that conditions can ask for; a device without a decoder is as before."""
    folder = decoders(tmp_path, level=SCRIPTS["level"], plain=SCRIPTS["plain"])
    async with lora_hub(tmp_path, decoder_folder=folder) as hub, a_station(hub) as station:
        await ready(hub)
        first = await personalised(hub, DEV_EUI, decoder="level")
        second = await personalised(hub, DEV_EUI + 1, 0x26000002, decoder="plain")
        third = await personalised(hub, DEV_EUI + 2, 0x26000003)
        devices = (first, second, third)
        rows = [await row_of(hub, station, each, port) for port, each in enumerate(devices, 1)]
        assert body(rows[0]) == {
            "f_port": 1,
            "f_cnt": int(rows[0]["properties"]["loraCounter"]),
            "frm_payload": "BwI=",
            "decoded_payload": {"cm": 7},
            "decoded_payload_warnings": ["low"],
        }
        assert "decoded_payload_warnings" not in body(rows[1])
        assert body(rows[1])["decoded_payload"] == {"port": 2}
        assert rows[2]["body"] == "\x07\x02"
        assert payloads(hub)["decoded"] == 2
        shown = await hub.call("lora device show", dev_eui=f"{DEV_EUI:016X}")
        assert shown["decoder"] == "level"


@pytest.mark.parametrize("device_class", ["A", "C"])
async def test_a_json_message_is_encoded_by_the_device_s_decoder(
    tmp_path: Path, device_class: str
) -> None:
    """One that cannot be is a dead letter with the reason, and the next one is sent."""
    folder = decoders(tmp_path, valve=SCRIPTS["valve"])
    async with lora_hub(tmp_path, decoder_folder=folder) as hub, a_station(hub) as station:
        await ready(hub)
        device = await personalised(hub, DEV_EUI, decoder="valve", device_class=device_class)
        if device_class == "C":
            await station.hear(device.uplink(b"0", confirmed=True))
            await answer(station, device)
        name, of_json = f"{DEV_EUI:016X}", {"content_type": "application/json; charset=utf-8"}
        for text in ("{", "[1]", "{}", '{"open": 1, "port": 0}', '{"open": 1, "port": 9}'):
            await hub.call("device send", device_id=name, body=text, **of_json)
        await hub.call("device send", device_id=name, body='{"open": 1}')
        found = []
        while len(found) < 2:
            if device_class == "A":
                await station.hear(device.uplink(b"0"))
            # A busy machine may encode too slowly; then it is tried again.
            received, _ = await answer(station, device, timeout_s=15)
            assert isinstance(received, ReceivedDownlink)
            if received.frame.f_port is not None:
                found.append((received.frame.f_port, received.payload))
        assert sorted(found) == [(1, b'{"open": 1}'), (9, b"\xff")]
        letters = (await hub.call("device messages", device_id=name))["dead_letters"]
        reasons = sorted(str(each["dead"]).removeprefix("Rejected: ")[:33] for each in letters)
        assert reasons == [
            "decoder valve: no open",
            "decoder valve: the body is no JSO",
            "decoder valve: the body is no JSO",
            "loraPort is 0, want a port from 1",
        ]


async def test_conditions_can_ask_for_it() -> None:
    """The document is JSON by its content type, whatever became of the decoding."""
    message = a_message(body=b"\x07")
    none = Decoders({}, SystemClock(), LogLimit(SystemClock()))
    await decode_body(message, none, "absent", DecodedUplink(3, 41, 0))
    assert matches("$body.f_port = 3 AND $body.f_cnt = 41", message)
    assert matches("$body.frm_payload = 'Bw==' AND is_defined(loraDecodeError)", message)


@pytest.mark.parametrize(
    ("decoder", "kinds", "reason"),
    [
        ("picky", {"failed", "timed_out"}, ""),
        ("hangs", {"ended", "timed_out"}, ""),
        ("absent", {"unknown"}, "has no 'absent.js'"),
    ],
)
async def test_a_payload_that_is_not_decoded_is_neither_lost_nor_late(
    tmp_path: Path, decoder: str, kinds: set[str], reason: str
) -> None:
    """Its message has the raw payload and the reason, and the frame is acknowledged in RX1."""
    folder = decoders(tmp_path, **SCRIPTS)
    async with lora_hub(tmp_path, decoder_folder=folder) as hub, a_station(hub) as station:
        await ready(hub)
        device = await personalised(hub, DEV_EUI, decoder=decoder)
        await station.hear(device.uplink(b"\x07", f_port=3, confirmed=True))
        received, message = await answer(station, device)
        assert isinstance(received, ReceivedDownlink)
        assert received.frame.ack
        assert "RX1DR" in message
        [row] = await hub.rows()
        assert body(row) == {"f_port": 3, "f_cnt": 0, "frm_payload": "Bw=="}
        assert reason in row["properties"]["loraDecodeError"]
        assert len(payloads(hub)) == 1
        assert set(payloads(hub)) <= kinds
        warned = [text for text in hub.hub.status()["warnings"] if "decoder" in text]
        assert len(warned) == 1


async def test_a_running_hub_takes_scripts_over(tmp_path: Path) -> None:
    """Also one that had none before; the next payload meets them."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI, decoder="plain")
        row = await row_of(hub, station, device, 5)
        assert "has no 'plain.js'" in row["properties"]["loraDecodeError"]
        folder = decoders(tmp_path, plain=SCRIPTS["plain"])
        members = {"lora": {"port": 0, "stations": ["::1"], "decoder_folder": folder}}
        [part] = [part for part in hub.hub.parts if isinstance(part, LoraPart)]
        await part.reload(read_configuration(settings(members), hub_id="gw"))
        await ready(hub)
        row = await row_of(hub, station, device, 6)
        assert body(row)["decoded_payload"] == {"port": 6}


def test_a_reload_reads_scripts_again(tmp_path: Path) -> None:
    """A changed file is another configuration; a script with a fault is none."""
    folder = decoders(tmp_path, level=SCRIPTS["level"])
    loaded = {"lora": {"port": 0, "stations": ["::1"], "decoder_folder": folder}}
    before = read_configuration(settings(loaded), hub_id="gw")
    assert set(before.decoders) == {"level"}
    decoders(tmp_path, level=SCRIPTS["plain"])
    after = read_configuration(settings(loaded), hub_id="gw")
    assert after.decoders["level"].source == SCRIPTS["plain"]
    assert before.files != after.files
    decoders(tmp_path, level="function decodeUplink(i) {\n\n  return {\n")
    with pytest.raises(ConfigurationError, match=r"level\.js, line \d: SyntaxError"):
        read_configuration(settings(loaded), hub_id="gw")


def settings(members: dict[str, Any]) -> LoadedSettings:
    """Return settings that came from nowhere."""
    return LoadedSettings(settings=Settings(**members), origins={})


def test_without_the_extra_the_settings_are_refused(tmp_path: Path, monkeypatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "dukpy", None)
    folder = decoders(tmp_path, level=SCRIPTS["level"])
    members = {"lora": {"port": 0, "stations": [f"{STATIONS[0]:016X}"], "decoder_folder": folder}}
    with pytest.raises(ConfigurationError, match=r"needs? dukpy.*install the extra \"lora-js\""):
        read_configuration(settings(members), hub_id="gw")
