"""The LoRaWAN head as a part of the hub.

Owns the head. Invariant: a hub without `lora.port` has none, and loads no cryptography for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from msgspec import to_builtins

from edgehub.devices.faults import DeviceError, DeviceSourceError
from edgehub.hub.heads import HeadPart
from edgehub.lora.device import DeviceClass
from edgehub.operations.lora_radio import LorawanRadioOperations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.device_bound.mailboxes import Mailboxes
    from edgehub.heads.lora.head import LoraHead
    from edgehub.hub.devices import DevicesPart
    from edgehub.operations.operation import Operation
    from edgehub.settings.configuration import Configuration

log = structlog.get_logger(__name__)


class LoraPart(HeadPart):
    """The head of LoRaWAN stations, loaded only where the settings have a port for it.

    Args:
        configuration: What the hub starts with.
        devices: Elections, registry and queues of devices.
        mailboxes: Messages to devices.
        clock: For all timers.
    """

    name = "lora"
    head: LoraHead | None

    def __init__(
        self,
        configuration: Configuration,
        *,
        devices: DevicesPart,
        mailboxes: Mailboxes,
        clock: Clock,
    ) -> None:
        self._devices = devices
        self._described = configuration.lorawan_devices
        self.head = None
        settings = configuration.settings
        if settings.lora.port is None:
            return
        # Loaded by hubs with stations only.
        from edgehub.heads.lora.head import LoraHead  # noqa: PLC0415
        from edgehub.lora.regions import region_of  # noqa: PLC0415

        self.head = LoraHead(
            settings.lora,
            region_of(settings.lora.region, settings.lora.sub_band),
            devices=devices.devices,
            find=devices.registration.find,
            frames=devices.frames,
            messages=mailboxes,
            scripts=configuration.decoders,
            clock=clock,
        )

    async def run(self) -> None:
        """Serve until cancelled; devices that always listen get messages from the start on."""
        if self.head is not None:
            await self._register()
            try:
                async for stored in self._devices.lorawan_devices():
                    profile, session = stored.profile.lora, stored.session.lora
                    is_c = profile is not None and profile.device_class is DeviceClass.C
                    if is_c and session is not None and session.station:
                        self.head.server.always_listens(stored.profile.device_id)
            except DeviceSourceError as error:
                # They are known again with their next frame.
                log.warning("lora.devices_not_read", reason=str(error))
        await super().run()

    async def check(self, configuration: Configuration) -> None:
        """Read certificate and token again; connections made from now on get them."""
        del configuration
        if self.head is not None:
            await self.head.reload()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Put the scripts of decoders in force, and register the devices of `lora.devices_file`."""
        if self.head is not None:
            self.head.server.decoders.replace(configuration.decoders)
            self._described = configuration.lorawan_devices
            await self._register()
        return {}

    async def _register(self) -> None:
        if not self._described:
            return
        try:
            written = await self._devices.registration.take(self._described)
        except DeviceError as error:
            log.warning("lora.devices_not_registered", reason=str(error))
        else:
            log.info("lora.devices_registered", devices=written, read=len(self._described))

    def status(self) -> dict[str, Any]:
        """Return the head's figures."""
        return {"lora": None if self.head is None else to_builtins(self.head.statistics())}

    def warnings(self) -> list[str]:
        """List stations that are not connected, or that repeat frames without end."""
        if self.head is None:
            return []
        documents = [self.head.stations.document(each) for each in self.head.stations.all()]
        found = [
            f"station {each['station']} is not connected"
            for each in documents
            if not each["connected"]
        ]
        found += [
            f"station {each['station']} repeats frames without end: check its packet forwarder"
            for each in documents
            if each["loops"]
        ]
        return [*found, *self.head.server.decoders.warnings()]

    def operations(self) -> Sequence[Operation]:
        """Return the operations on stations, and on the radio of devices."""
        return LorawanRadioOperations(self.head).table()

    def ports(self) -> dict[str, int | None]:
        """Return the port, None = there is none."""
        head = self.head
        return {"lora_port": head.addresses[0][1] if head is not None and head.addresses else None}
