"""The control socket as a part of the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.control.server import ControlServer
from edgehub.hub.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edgehub.operations.operation import Operation


class ControlPart(Part):
    """Answers the command line from the moment at which it is open.

    Args:
        path: Where the socket goes.
        operations: What may be asked.
        digest: Returns the digest of the settings file in force.
    """

    name = "control"

    def __init__(
        self, path: Path, operations: Mapping[str, Operation], digest: Callable[[], str]
    ) -> None:
        self._server = ControlServer(path, operations, digest)

    async def open(self) -> None:
        """Bind the socket."""
        await self._server.open()

    async def close(self) -> None:
        """Stop answering."""
        await self._server.close()
