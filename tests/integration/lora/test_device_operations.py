"""LoRaWAN devices of a running hub, by the operations that command line and API have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.cli.refusal import CommandError
from tests.support.broker_hub import running_hub

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

JOINS = "70B3D57ED0000001"
PERSONALISED = "70B3D57ED0000002"
APP_KEY = "0a" * 16
NWK_S_KEY = "0b" * 16
APP_S_KEY = "0c" * 16


async def test_devices_are_registered_shown_and_removed(tmp_path: Path) -> None:
    """They survive a restart, and keys leave only where they are asked for."""
    async with running_hub(tmp_path) as hub:
        added = await hub.call(
            "lora device add", dev_eui="70-b3-d5-7e-d0-00-00-01", app_key=APP_KEY, name="pump"
        )
        assert (added["dev_eui"], added["activation"], added["dev_addr"]) == (JOINS, "otaa", None)
        abp = {"dev_addr": "26000001", "nwk_s_key": NWK_S_KEY, "app_s_key": APP_S_KEY}
        await hub.call("lora device add", dev_eui=PERSONALISED, **abp)
        with pytest.raises(CommandError, match="is registered already"):
            await hub.call("lora device add", dev_eui=JOINS, app_key=NWK_S_KEY)
        with pytest.raises(CommandError, match="`app_key`: want 32 hex digits"):
            await hub.call("lora device add", dev_eui=JOINS, app_key="0a")
    async with running_hub(tmp_path) as hub:
        page = await hub.call("lora device list", limit=1)
        assert ([each["dev_eui"] for each in page["devices"]], page["next"]) == ([JOINS], JOINS)
        page = await hub.call("lora device list", after=JOINS)
        assert [each["dev_addr"] for each in page["devices"]] == ["26000001"]
        assert page["next"] is None
        shown = await hub.call("lora device show", dev_eui=PERSONALISED)
        assert "keys" not in shown
        shown = await hub.call("lora device show", dev_eui=PERSONALISED, keys=True)
        assert shown["keys"]["f_nwk_s_int_key"] == NWK_S_KEY
        treated = await hub.call("device set", device_id=JOINS, keep_alive_s=60)
        assert APP_KEY not in str([treated, await hub.call("device show", device_id=JOINS)])
        assert (await hub.call("lora device show", dev_eui=JOINS))["name"] == "pump"
        assert (await hub.call("lora device remove", dev_eui=JOINS))["removed"]
        assert not (await hub.call("lora device remove", dev_eui=JOINS))["removed"]
        with pytest.raises(CommandError, match="there is no LoRaWAN device"):
            await hub.call("lora device show", dev_eui=JOINS)


async def test_a_list_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    """A fault keeps all out; known devices stay unless they are to be replaced."""
    good = f"dev_eui,app_key,name\n{JOINS},{APP_KEY},one\n{PERSONALISED},{APP_KEY},two\n"
    async with running_hub(tmp_path) as hub:
        with pytest.raises(CommandError, match="line 4: `dev_eui`"):
            await hub.call("lora device import", devices=f"{good}x,{APP_KEY},three\n")
        tried = await hub.call("lora device import", devices=good, dry_run=True)
        assert tried == {"added": 2, "changed": 0, "skipped": 0}
        assert (await hub.call("lora device list"))["devices"] == []
        await hub.call("lora device add", dev_eui=JOINS, app_key=NWK_S_KEY)
        taken = await hub.call("lora device import", devices=good)
        assert taken == {"added": 1, "changed": 0, "skipped": 1}
        replaced = await hub.call("lora device import", devices=good, replace=True)
        assert replaced == {"added": 0, "changed": 2, "skipped": 0}
        shown = await hub.call("lora device show", dev_eui=JOINS, keys=True)
        assert (shown["name"], shown["keys"]["app_key"]) == ("one", APP_KEY)


async def test_forgetting_nonces_is_answered_with_their_number(tmp_path: Path) -> None:
    """Of a device that has never joined there are none."""
    async with running_hub(tmp_path) as hub:
        await hub.call("lora device add", dev_eui=JOINS, app_key=APP_KEY)
        answer = await hub.call("lora device forget-nonces", dev_eui=JOINS)
        assert answer == {"dev_eui": JOINS, "forgotten": 0}
