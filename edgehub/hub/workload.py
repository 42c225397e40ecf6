"""The workload API as a part of the hub.

Owns its server. Invariant: a hub without `workload.folder` has none.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from edgehub.errors import ConfigError
from edgehub.hub.part import Part
from edgehub.storage.credentials import load_authorities

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.heads.workload.server import WorkloadServer
    from edgehub.settings import WorkloadSettings
    from edgehub.settings.configuration import Configuration


class WorkloadPart(Part):
    """The workload API, if the settings have a folder for it.

    Args:
        settings: Of the section `[workload]`.
        hub_id: The hub's.
        identities: Keys of modules; taken over before the reload of this part.
        clock: For time limits.
    """

    name = "workload"

    def __init__(
        self, settings: WorkloadSettings, *, hub_id: str, identities: Identities, clock: Clock
    ) -> None:
        self._trust_bundle_file = settings.trust_bundle_file
        self._server: WorkloadServer | None = None
        if settings.folder is None:
            return
        # Loaded by hubs with such a folder only.
        from edgehub.heads.workload.api import WorkloadApi  # noqa: PLC0415
        from edgehub.heads.workload.server import WorkloadServer  # noqa: PLC0415

        self._api = WorkloadApi(hub_id, identities, clock)
        self._server = WorkloadServer(settings.folder, self._api, clock)

    async def open(self) -> None:
        """Read the trust bundle, and open the sockets."""
        if self._server is not None:
            await self._read_trust_bundle()
            await self._server.open()

    async def close(self) -> None:
        """Close and remove the sockets."""
        if self._server is not None:
            await self._server.close()

    async def check(self, configuration: Configuration) -> None:
        """Read the trust bundle again."""
        del configuration
        if self._server is not None:
            await self._read_trust_bundle()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Open and close sockets as the identities in force want it."""
        del configuration
        if self._server is not None:
            try:
                await self._server.follow()
            except OSError as error:
                raise ConfigError("workload.folder", error.strerror or str(error)) from error
        return {}

    def status(self) -> dict[str, Any]:
        """Return figures of requests."""
        server = self._server
        return {"workload": None if server is None else to_builtins(server.statistics())}

    async def _read_trust_bundle(self) -> None:
        assert self._trust_bundle_file is not None, "the settings require it with a folder"
        self._api.trust_bundle = await asyncio.to_thread(_trust_bundle, self._trust_bundle_file)


def _trust_bundle(file: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return load_authorities(context, "workload.trust_bundle_file", file)
