"""Commands on devices, as the control socket carries them: who speaks for one, since when, why.

Owns nothing; reads flags, objects, registry and ledger, and writes profiles. Everything is answered
in pages, so that no number of devices makes an answer long.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from edgehub.clock import utc_text
from edgehub.devices.affinity.flags import Cause, Ownership
from edgehub.devices.source import Deduplication, StoredDevice
from edgehub.errors import ConfigError
from edgehub.hub_id import is_hub_id
from edgehub.operations.arguments import DEVICE, LIMIT, client_of, page_of, paged, text, whole
from edgehub.operations.operation import ArgumentError, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.devices.affinity.flags import Flags
    from edgehub.devices.affinity.table import AffinityTable, LedgerRow
    from edgehub.devices.devices import Devices
    from edgehub.devices.source import DeviceProfile, DeviceRegistry
    from edgehub.store.store import Store

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
STEALS: Final = frozenset({Cause.OWNER_SILENT.value, Cause.HEARD_FIRST.value})
"""Causes with which this hub took a device from another."""


class DeviceOperations:
    """Operations on devices that several hubs hear.

    Args:
        hub_id: Name of this hub.
        store: Knows times.
        table: The ledger.
        flags: What this hub knows of elections.
        devices: What is in memory.
        registry: Where profiles are kept, None = in twins upstream, which others write.
        common: Profile of devices without one of their own.
        coordinator: Who elects, as the settings say it; `off` = none, and devices are not recorded.
    """

    def __init__(
        self,
        *,
        hub_id: str,
        store: Store,
        table: AffinityTable,
        flags: Flags,
        devices: Devices,
        registry: DeviceRegistry | None,
        common: DeviceProfile,
        coordinator: str,
    ) -> None:
        self._hub_id = hub_id
        self._store = store
        self._table = table
        self._flags = flags
        self._devices = devices
        self._registry = registry
        self._common = common
        self._coordinator = coordinator
        self._writing = asyncio.Lock()

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="device list",
                about="List devices that several hubs hear, a page at a time.",
                handler=self._list,
                result="edgehub.operations.results.devices:DevicesDocument",
                arguments=paged("Id"),
            ),
            Operation(
                name="device show",
                about="Show one device: its profile, session, queue and elections.",
                handler=self._show,
                result="edgehub.operations.results.devices:ShownDevice",
                arguments=(DEVICE,),
            ),
            Operation(
                name="device ledger",
                about="Show the newest elections, of one device or of all.",
                handler=self._ledger,
                result="edgehub.operations.results.devices:LedgerDocument",
                arguments=(text("device_id", "Of this one alone."), LIMIT),
            ),
            Operation(
                name="device set",
                about="Change the profile of a device.",
                handler=self._set,
                result="edgehub.operations.results.devices:ProfileDocument",
                arguments=(
                    DEVICE,
                    text(
                        "deduplication",
                        "What becomes of a copy that a hub heard too late.",
                        choices=tuple(Deduplication),
                    ),
                    text("gateway_id", "The only hub that speaks for it; null = any."),
                    whole("keep_alive_s", "Of its session; 0 = none.", maximum=86_400),
                ),
                changes=True,
            ),
            Operation(
                name="device forget",
                about="Remove the profile of a device.",
                handler=self._forget,
                result="edgehub.operations.results.devices:ForgottenDocument",
                arguments=(DEVICE,),
                changes=True,
            ),
            Operation(
                name="device release",
                about="Stop speaking for a device; the next hub that hears it does.",
                handler=self._release,
                result="edgehub.operations.results.devices:ReleasedDocument",
                arguments=(DEVICE,),
                changes=True,
            ),
        ]

    async def _list(self, **page: Any) -> dict[str, Any]:
        names = {*self._flags.all(), *(device.device_id for device in self._devices.all())}
        shown, after = page_of(names, **page)
        return {
            "hub_id": self._hub_id,
            "coordinator": self._coordinator,
            "devices": list(map(self._row, shown)),
            "next": after,
        }

    async def _show(self, *, device_id: str) -> dict[str, Any]:
        client_of(device_id)
        device = self._devices.known(device_id)
        in_memory = None if device is None else device.stored
        # A twin is not read for this: that would take the session from the hub that has it.
        stored = in_memory or StoredDevice(profile=replace(self._common, device_id=device_id))
        if self._registry is not None:
            stored = await self._registry.load(device_id)
        document = self._row(device_id)
        document["profile"] = _profile_document(stored.profile)
        session = (in_memory or stored).session
        document["session"] = {
            "name": session.session,
            "generation": session.generation,
            "address": session.address,
            "f_cnt_up": session.f_cnt_up,
        }
        queue = self._devices.queues.known(device_id)
        if queue is not None:
            document["queue"] = to_builtins(queue.statistics())
        if device is not None:
            document["connection"] = to_builtins(device.connection.statistics())
        document["ledger"] = [
            self._entry(row) for row in await self._table.ledger(device_id, limit=20)
        ]
        return document

    async def _ledger(self, *, limit: int, device_id: str | None = None) -> dict[str, Any]:
        if device_id is not None:
            client_of(device_id)
        now_ms = self._store.hub_time.now_ms()
        rows = await self._table.ledger(device_id)
        recent = [row for row in rows if row.at_ms >= now_ms - DAY_MS]
        hour = [row for row in recent if row.at_ms >= now_ms - HOUR_MS]
        return {
            "hub_id": self._hub_id,
            "entries": [self._entry(row) for row in rows[-limit:]] if limit else [],
            "last_hour": _counts(hour),
            "last_day": _counts(recent),
        }

    async def _set(
        self, *, device_id: str, deduplication: str | None = None, **changes: Any
    ) -> dict[str, Any]:
        client_of(device_id)
        registry = self._written()
        if deduplication is not None:
            changes["deduplication"] = Deduplication(deduplication)
        gateway_id = changes.get("gateway_id")
        if gateway_id is not None and not is_hub_id(gateway_id):
            # A name that no hub can have would have the device refused everywhere.
            raise ArgumentError("`gateway_id`: want the `hub_id` of a hub, or none")
        if "keep_alive_s" in changes:
            changes["keep_alive_s"] = changes["keep_alive_s"] or 0
        async with self._writing:  # of two that change it at once, both count
            stored = await registry.load(device_id)
            try:
                profile = replace(stored.profile, **changes)
            except ConfigError as error:
                raise ArgumentError(f"`{error.key}`: {error.reason}; {error.hint}") from error
            await registry.put(profile)
        await self._devices.settings_changed(device_id)
        return _profile_document(profile)

    async def _forget(self, *, device_id: str) -> dict[str, Any]:
        client_of(device_id)
        async with self._writing:
            forgotten = await self._written().remove(device_id)
        await self._devices.forgotten(device_id)
        return {"forgotten": forgotten}

    async def _release(self, *, device_id: str) -> dict[str, Any]:
        client_of(device_id)
        if self._coordinator != "redis":
            raise ArgumentError(
                f"coordinator = {self._coordinator}: no other hub could speak for {device_id}"
            )
        released = self._flags.of(device_id) is Ownership.OWNER
        if released:
            await self._devices.close(device_id)
        return {"released": released}

    def _written(self) -> DeviceRegistry:
        if self._registry is None:
            raise ArgumentError("registry = twin: settings of devices are changed upstream")
        return self._registry

    def _row(self, device_id: str) -> dict[str, Any]:
        flag = self._flags.flag(device_id)
        device = self._devices.known(device_id)
        queue = self._devices.queues.known(device_id)
        return {
            "device_id": device_id,
            "ownership": self._flags.of(device_id).value,
            "epoch": flag.epoch,
            "in_memory": device is not None,
            "session_open": device is not None and device.connection.is_open,
            "waiting": 0 if queue is None else len(queue.statistics().waiting),
            "silent_s": None if device is None else round(device.silent_s(), 1),
        }

    def _entry(self, row: LedgerRow) -> dict[str, Any]:
        time_ms = self._store.utc_ms(row.at_ms)
        return {
            "device_id": row.device_id,
            "time": utc_text(time_ms),
            "time_ms": time_ms,
            "ownership": row.ownership,
            "former": row.former,
            "cause": row.cause,
            "other": row.other or None,
            "epoch": row.epoch,
            "steal": row.cause in STEALS,
        }


def _counts(rows: Iterable[LedgerRow]) -> dict[str, int]:
    """Count what was taken, lost, and came back after it was lost within the same time."""
    taken = lost = taken_over = returned = 0
    lost_ids: set[str] = set()
    for row in rows:
        taken += row.cause in STEALS
        taken_over += row.cause == Cause.TAKEN_OVER
        if row.former == Ownership.OWNER and row.ownership == Ownership.LOSER:
            lost += 1
            lost_ids.add(row.device_id)
        elif row.ownership == Ownership.OWNER and row.device_id in lost_ids:
            lost_ids.discard(row.device_id)
            returned += 1
    return {"taken": taken, "lost": lost, "ping_pongs": returned, "sessions_taken_over": taken_over}


def _profile_document(profile: DeviceProfile) -> dict[str, Any]:
    # What it has as a LoRaWAN device holds keys; `lora device show` has the rest of it.
    members = asdict(profile)
    del members["lora"]
    document: dict[str, Any] = to_builtins(members)
    return document
