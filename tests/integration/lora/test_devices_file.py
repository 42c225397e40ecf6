"""Devices whose keys are in a file that the settings name, such as a credential of systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.lab.radio.device import SimulatedLorawanDevice
from tests.support.lora import APP_KEY, a_station, answer, lora_hub

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001
NAME = f"{DEV_EUI:016X}"
HEAD = "dev_eui,name,app_key\n"


async def test_devices_of_a_credential_are_registered_and_keep_their_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start and at a reload; what is described as before joins no second time."""
    credential = tmp_path / "lora-devices"
    credential.write_text(f"{HEAD}{NAME},pump,{APP_KEY.hex()}\n")
    credential.chmod(0o600)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    options = {"devices_file": "credential:lora-devices"}
    async with lora_hub(tmp_path / "hub", **options) as hub, a_station(hub) as station:
        device = SimulatedLorawanDevice(DEV_EUI, APP_KEY)
        await station.hear(device.join_request())
        await answer(station, device)
        with credential.open("a") as file:
            file.write(f"70B3D57ED0000002,valve,{APP_KEY.hex()}\n")
        await hub.call("config reload")
        listed = (await hub.call("lora device list", limit=10))["devices"]
        assert [(row["name"], row["joins"]) for row in listed] == [("pump", 1), ("valve", 0)]
        credential.write_text(f"{HEAD}{NAME},pump,0123\n")
        refused = await hub.call("config reload")
        assert refused["outcome"] == "refused"
        assert "lora.devices_file" in str(refused)
        assert "32 hex digits" in str(refused)
        assert APP_KEY.hex() not in str(refused)
