"""The commands of the control socket: each name and the coroutine function behind it.

Owns nothing. The hub's own commands stand here; assemblies bring theirs, `operating/` has those on
queues and rows.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from edgehub.errors import ConfigError, ManifestError
from edgehub.hub.store import store_caps
from edgehub.operations.manifest_change import Present, difference_document, manifest_document
from edgehub.operations.queues import NAMES
from edgehub.operations.room import Room
from edgehub.operations.sessions import SessionCommands
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.message_form import read_message
from edgehub.settings.configuration import compile_table, endpoint_names, fault_documents
from edgehub.settings.effective import effective_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgehub.hub.parts import HubParts
    from edgehub.operations.operation import Command

    Arguments = Mapping[str, Any]


class Commands:
    """See the module.

    Args:
        parts: The running hub.
        status: Describes the whole hub.
    """

    __slots__ = ("_parts", "_status")

    def __init__(self, parts: HubParts, status: Callable[[], dict[str, Any]]) -> None:
        self._parts = parts
        self._status = status

    def table(self) -> dict[str, Command]:
        """Give every command by its name."""
        table: dict[str, Command] = {
            "status": self._status_command,
            "config reload": self._reload,
            "config show": self._settings,
            "manifest show": self._manifest,
            "manifest diff": self._difference,
            "route explain": self._explain,
            **{name: partial(self._parts.operating.call, name) for name in NAMES},
            **SessionCommands(self._parts.listener).table(),
        }
        for assembly in self._parts.assemblies:
            table.update(assembly.commands())
        return table

    async def _status_command(self, _arguments: Arguments) -> dict[str, Any]:
        await self._parts.outlook.refresh()
        return self._status()

    async def _reload(self, _arguments: Arguments) -> dict[str, Any]:
        return (await self._parts.reloader.reload()).document()

    async def _settings(self, _arguments: Arguments) -> dict[str, Any]:
        configuration = self._parts.reloader.configuration
        return effective_document(
            configuration.loaded,
            manifest=configuration.manifest,
            hub_id=self._parts.hub_id,
            running=True,
        )

    async def _manifest(self, _arguments: Arguments) -> dict[str, Any]:
        return manifest_document(self._parts.router.table.manifest)

    async def _explain(self, arguments: Arguments) -> dict[str, Any]:
        message = read_message(arguments.get("message"))
        table = self._parts.router.table
        verdicts = [verdict.document() for verdict in table.explain(message)]
        return {"of": "hub", "manifest": table.manifest.file, "routes": verdicts}

    async def _difference(self, arguments: Arguments) -> dict[str, Any]:
        parts = self._parts
        text, file = arguments.get("text"), arguments.get("file")
        if not isinstance(text, str) or not isinstance(file, str):
            raise ConfigError("arguments", "want the manifest's `text` and its `file` name")
        settings = parts.reloader.configuration.settings
        try:
            names = endpoint_names(settings)
            after = await asyncio.to_thread(parse_manifest, text, file=file, endpoints=names)
            table = await asyncio.to_thread(compile_table, after, settings, hub_id=parts.hub_id)
            after = table.manifest
        except ManifestError as error:
            return {"faults": fault_documents(error)}
        usage = await asyncio.to_thread(shutil.disk_usage, settings.data_dir)
        manifest = parts.route_table.manifest()
        of_manifest = {spec.name for spec in manifest.routes}
        present = Present(
            manifest=manifest,
            # The name of a tenant's route holds its tenant.
            others=[
                spec
                for spec in parts.router.table.manifest.routes
                if spec.name not in of_manifest and "/" not in spec.name
            ],
            queues=[queue.statistics() for queue in parts.store.queues()],
            rates=parts.outlook.rates(),
            served=parts.egress.served(),
            room=Room.of(
                store_caps(settings.store), total_bytes=usage.total, free_bytes=usage.free
            ),
        )
        return {"faults": [], **await asyncio.to_thread(difference_document, present, after)}
