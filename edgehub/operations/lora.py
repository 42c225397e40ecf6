"""Operations on LoRaWAN devices: who is registered, with which keys, and in which session.

Owns nothing; reads and writes the registry. Keys leave only where they are asked for by a caller
who may change devices.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace

from edgehub.devices.source import RADIO_ADDRESS
from edgehub.lora.device import (
    DeviceClass,
    DeviceFormError,
    MacVersion,
    parse_device,
)
from edgehub.lora.device_import import COLUMNS, parse_devices
from edgehub.operations.arguments import DEV_EUI, PAGE_MAX, dev_eui_of, flag, paged, text
from edgehub.operations.operation import (
    ArgumentError,
    ArgumentKind,
    NotFoundError,
    Operation,
)

if TYPE_CHECKING:
    from edgehub.devices.devices import Devices
    from edgehub.devices.lorawan_registration import LorawanRegistration
    from edgehub.devices.source import DeviceRegistry, StoredDevice

_KEYS: Final = (
    "app_key",
    "nwk_key",
    "nwk_s_key",
    "app_s_key",
    "f_nwk_s_int_key",
    "s_nwk_s_int_key",
    "nwk_s_enc_key",
)
_SESSION_KEYS: Final = ("f_nwk_s_int_key", "s_nwk_s_int_key", "nwk_s_enc_key", "app_s_key")
_UPSTREAM: Final = (
    "affinity.registry is twin: keys and settings of devices are desired properties of their twins"
)

log = structlog.get_logger(__name__)


class LorawanDeviceOperations:
    """Operations on LoRaWAN devices.

    Args:
        registry: Where they are listed, and kept unless they are kept upstream.
        registration: Writes them there.
        devices: What is in memory.
        are_upstream: They are kept in twins upstream, which others write.
    """

    def __init__(
        self,
        registry: DeviceRegistry,
        registration: LorawanRegistration,
        devices: Devices,
        *,
        are_upstream: bool = False,
    ) -> None:
        self._registry = registry
        self._registration = registration
        self._are_upstream = are_upstream
        self._devices = devices
        self._writing = asyncio.Lock()

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="lora device add",
                about="Register a LoRaWAN device.",
                handler=self._add,
                result="edgehub.operations.results.lora:LorawanDeviceDocument",
                arguments=(
                    DEV_EUI,
                    text("name", "Display name."),
                    text("mac_version", "Its LoRaWAN.", choices=tuple(MacVersion)),
                    text("device_class", "C = it always listens.", choices=tuple(DeviceClass)),
                    text("join_eui", "JoinEUI of its joins; absent = any."),
                    text("dev_addr", "Address of a device that does not join, 8 hex digits."),
                    *(text(name, "A key, 32 hex digits.") for name in _KEYS),
                    text("decoder", "What decodes its payloads: NAME of NAME.js in its folder."),
                    flag("strict_counters", "It never starts again with counter 0 or 1."),
                    flag("replace", "Change a device that is registered; it joins again."),
                ),
                changes=True,
            ),
            Operation(
                name="lora device list",
                about="List LoRaWAN devices, a page at a time.",
                handler=self._list,
                result="edgehub.operations.results.lora:LorawanDevicesDocument",
                arguments=paged("DevEUI"),
            ),
            Operation(
                name="lora device show",
                about="Show a LoRaWAN device and its session.",
                handler=self._show,
                result="edgehub.operations.results.lora:LorawanDeviceDocument",
                arguments=(DEV_EUI, flag("keys", "Show its keys.", protected=True)),
            ),
            Operation(
                name="lora device remove",
                about="Remove a LoRaWAN device with its keys and session.",
                handler=self._remove,
                result="edgehub.operations.results.lora:RemovedLorawanDevice",
                arguments=(DEV_EUI,),
                changes=True,
            ),
            Operation(
                name="lora device forget-nonces",
                about="Forget which DevNonces a device has used, so that it may use them again.",
                handler=self._forget_nonces,
                result="edgehub.operations.results.lora:ForgottenNonces",
                arguments=(DEV_EUI,),
                changes=True,
            ),
            Operation(
                name="lora device import",
                about="Register the LoRaWAN devices of a list, all of them or none.",
                handler=self._import,
                result="edgehub.operations.results.lora:ImportedLorawanDevices",
                arguments=(
                    text(
                        "devices",
                        "CSV, or JSON of The Things Stack or ChirpStack.",
                        kind=ArgumentKind.FILE,
                        required=True,
                    ),
                    flag("replace", "Change devices that are registered; else they stay."),
                    flag("dry_run", "Check the list and change nothing."),
                ),
                changes=True,
            ),
        ]

    async def _add(self, **arguments: Any) -> dict[str, Any]:
        if self._are_upstream:
            return await self._read(**arguments)
        members = {name: arguments.get(name) for name in COLUMNS}
        members["relaxed_counters"] = not arguments.get("strict_counters")
        try:
            description = parse_device(members)
        except DeviceFormError as error:
            raise ArgumentError(str(error)) from error
        async with self._writing:
            if (
                not arguments.get("replace")
                and await self._registration.find(description.dev_eui) is not None
            ):
                raise ArgumentError(
                    f"{description.dev_eui} is registered already; `replace` changes it"
                )
            await self._registration.write(description)
        return await self._document(description.dev_eui)

    async def _read(self, *, dev_eui: str, **others: Any) -> dict[str, Any]:
        """Read the twin of a device, which then is found by its address."""
        if given := [name for name, value in others.items() if value]:
            raise ArgumentError(
                f"`{given[0]}`: {_UPSTREAM}; give its DevEUI alone to read its twin"
            )
        dev_eui = dev_eui_of(dev_eui)
        await self._devices.read(dev_eui)
        return await self._document(dev_eui)

    async def _import(self, *, devices: str, replace: bool, dry_run: bool) -> dict[str, Any]:
        if self._are_upstream:
            raise ArgumentError(_UPSTREAM)
        try:
            found = parse_devices(devices)
        except DeviceFormError as error:
            raise ArgumentError(str(error)) from error
        async with self._writing:
            known = {
                each.dev_eui
                for each in found
                if await self._registration.find(each.dev_eui) is not None
            }
            wanted = [each for each in found if replace or each.dev_eui not in known]
            if not dry_run:
                for each in wanted:
                    await self._registration.write(each)
                log.info("lora.devices_imported", devices=len(wanted), read=len(found))
        changed = sum(each.dev_eui in known for each in wanted)
        return {
            "added": len(wanted) - changed,
            "changed": changed,
            "skipped": len(found) - len(wanted),
        }

    async def _list(self, *, limit: int, after: str | None = None) -> dict[str, Any]:
        after = (after or "").upper()
        rows: list[StoredDevice] = []
        while page := await self._registry.page(after, PAGE_MAX):
            rows += (each for each in page if each.profile.lora is not None)
            after = page[-1].profile.device_id
            if len(rows) > limit:
                break
        return {
            "devices": [_document_of(self._newest(each)) for each in rows[:limit]],
            "next": rows[limit - 1].profile.device_id if 0 < limit < len(rows) else None,
        }

    async def _show(self, *, dev_eui: str, keys: bool) -> dict[str, Any]:
        return await self._document(dev_eui_of(dev_eui), keys=keys)

    async def _remove(self, *, dev_eui: str) -> dict[str, Any]:
        dev_eui = dev_eui_of(dev_eui)
        async with self._writing:
            removed = await self._registration.find(
                dev_eui
            ) is not None and await self._devices.rewrite(
                dev_eui, lambda: self._registry.remove(dev_eui)
            )
        if removed:
            log.info("lora.device_removed", device_id=dev_eui)
        return {"dev_eui": dev_eui, "removed": removed}

    async def _forget_nonces(self, *, dev_eui: str) -> dict[str, Any]:
        dev_eui = dev_eui_of(dev_eui)
        await self._registered(dev_eui)
        before = await self._devices.change_session(
            dev_eui, lambda session: replace(session, dev_nonces=())
        )
        count = len(before.dev_nonces)
        log.info("lora.nonces_forgotten", device_id=dev_eui, nonces=count)
        return {"dev_eui": dev_eui, "forgotten": count}

    async def _registered(self, dev_eui: str) -> StoredDevice:
        stored = await self._registration.find(dev_eui)
        if stored is None:
            raise NotFoundError(
                f"there is no LoRaWAN device {dev_eui}; see `edgehub lora device list`"
            )
        return stored

    async def _document(self, dev_eui: str, *, keys: bool = False) -> dict[str, Any]:
        stored = await self._registered(dev_eui)
        if self._are_upstream:
            await self._devices.read(dev_eui, again=False)
        stored = self._newest(stored)
        document = _document_of(stored)
        if keys:
            document["keys"] = _keys_of(stored)
        return document

    def _newest(self, stored: StoredDevice) -> StoredDevice:
        device = self._devices.known(stored.profile.device_id)
        if self._are_upstream and device is not None and device.stored is not None:
            return device.stored
        return self._registration.newest(stored)


def _document_of(stored: StoredDevice) -> dict[str, Any]:
    profile, session = stored.profile, stored.session
    assert profile.lora is not None
    return {
        "dev_eui": profile.device_id,
        "name": profile.lora.name,
        "mac_version": profile.lora.mac_version.value,
        "device_class": profile.lora.device_class.value,
        "activation": profile.activation.value,
        "join_eui": profile.lora.join_eui or None,
        "decoder": profile.lora.decoder or None,
        "dev_addr": session.address.removeprefix(RADIO_ADDRESS) or None,
        "joins": session.generation,
        "f_cnt_up": session.f_cnt_up,
        "f_cnt_down": 0 if session.lora is None else session.lora.f_cnt_down,
    }


def _keys_of(stored: StoredDevice) -> dict[str, str]:
    profile, session = stored.profile.lora, stored.session.lora
    assert profile is not None
    keys = {"app_key": profile.app_key, "nwk_key": profile.nwk_key}
    if session is not None:
        keys |= {name: getattr(session, name) for name in _SESSION_KEYS}
    return {name: key for name, key in keys.items() if key}
