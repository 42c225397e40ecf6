"""Commands on twins, as the control socket and the HTTP API carry them.

Owns nothing; asks the twins. A twin is written in the form of Azure IoT Hub's service API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import StoreError
from edgehub.operations.arguments import CLIENT, client_of, document, page_of, paged
from edgehub.operations.operation import ArgumentError, NotFoundError, Operation, Resource
from edgehub.store.failure import settling
from edgehub.twins.document import TwinElsewhereError, TwinOwnedError, check_patch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from edgehub.message import Refusal
    from edgehub.twins.twins import ClientTwins

PATH: Final = "/api/v1/twins/{device_id}"


class TwinOperations:
    """Operations on twins.

    Args:
        twins: The twins of the hub's clients.
        is_known: Returns whether there is a client of an id, with or without a twin.
        is_owned: Returns whether the peer upstream says what is desired of a client.
        owner: Returns the other hub with which a client is, None = none is known.
    """

    def __init__(
        self,
        twins: ClientTwins,
        *,
        is_known: Callable[[str], bool],
        is_owned: Callable[[str], bool],
        owner: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self._twins = twins
        self._is_known = is_known
        self._is_owned = is_owned
        self._owner = owner

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="twin list",
                about="List devices and modules that have a twin, a page at a time.",
                handler=self._list,
                result="edgehub.operations.results.twins:TwinsDocument",
                arguments=paged("Client id"),
                resource=Resource(method="GET", path="/api/v1/twins"),
            ),
            Operation(
                name="twin show",
                about="Show the twin of a device or module.",
                handler=self._show,
                result="edgehub.operations.results.twins:TwinDocument",
                arguments=CLIENT,
                resource=Resource(method="GET", path=PATH),
            ),
            Operation(
                name="twin set",
                about="Merge a patch into desired properties and tags of a twin.",
                handler=self._set,
                result="edgehub.operations.results.twins:TwinDocument",
                arguments=(
                    *CLIENT,
                    document(
                        "patch",
                        "an object with `properties.desired`, `tags` or both; null removes",
                        required=True,
                    ),
                ),
                changes=True,
                resource=Resource(method="PATCH", path=PATH, body="patch"),
            ),
            Operation(
                name="twin remove",
                about="Remove the twin of a device or module.",
                handler=self._remove,
                result="edgehub.operations.results.twins:RemovedTwin",
                arguments=CLIENT,
                changes=True,
                resource=Resource(method="DELETE", path=PATH),
            ),
        ]

    async def _list(self, **page: Any) -> dict[str, Any]:
        shown, after = page_of(self._twins.ids(), **page)
        return {"twins": list(map(self._row, shown)), "next": after}

    async def _show(self, **client: Any) -> dict[str, Any]:
        client_id = client_of(**client)
        return self._document(client_id, await self._other_hub(client_id))

    async def _set(self, *, patch: Any, **client: Any) -> dict[str, Any]:
        client_id = client_of(**client)
        owner = await self._other_hub(client_id)
        desired, tags = _sections(patch)
        if desired and self._is_owned(client_id):
            raise TwinOwnedError(client_id)
        if desired and owner is not None:
            raise TwinElsewhereError(client_id, owner)
        before = self._twins.get(client_id)
        twin = before.desire(desired) if desired else before
        twin = twin.tag(tags) if tags else twin
        if twin is not before:
            settle, settled = settling()
            self._twins.put(client_id, twin, settle, patch=desired)
            await _stored(settled)
        return self._document(client_id, owner)

    async def _remove(self, **client: Any) -> dict[str, Any]:
        client_id = client_of(**client)
        settle, settled = settling()
        removed = self._twins.remove(client_id, settle)
        if removed:
            await _stored(settled)
        return {"client_id": client_id, "removed": removed}

    async def _other_hub(self, client_id: str) -> str | None:
        """Return the other hub with which a client that is known is.

        Raises:
            NotFoundError: It is not known.
            TwinElsewhereError: It is known to be with another hub alone.
        """
        owner = await self._owner(client_id)
        if not self._is_known(client_id):
            if owner is not None:
                raise TwinElsewhereError(client_id, owner)
            raise NotFoundError(
                f"there is no client {client_id}: it has no identity and no twin, and is not "
                "connected (connect it, or add it with `edgehub identity add`)"
            )
        return owner

    def _row(self, client_id: str) -> dict[str, Any]:
        twin = self._twins.get(client_id)
        return {
            "client_id": client_id,
            "desired_version": twin.desired_version,
            "reported_version": twin.reported_version,
        }

    def _document(self, client_id: str, owner: str | None) -> dict[str, Any]:
        twin = self._twins.get(client_id)
        device_id, _, module_id = client_id.partition("/")
        return {
            "deviceId": device_id,
            "moduleId": module_id or None,
            "tags": twin.tags,
            "properties": {
                "desired": {**twin.desired, "$version": twin.desired_version},
                "reported": {**twin.reported, "$version": twin.reported_version},
            },
            "owner": owner,
        }


def _sections(patch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the desired properties and the tags of a patch, checked."""
    properties = patch.get("properties", {}) if isinstance(patch, dict) else None
    if (
        not isinstance(properties, dict)
        or patch.keys() - {"properties", "tags"}
        or properties.keys() - {"desired"}
    ):
        raise ArgumentError('want {"properties": {"desired": {...}}, "tags": {...}}, one or both')
    return check_patch(properties.get("desired", {})), check_patch(patch.get("tags", {}))


async def _stored(settled: asyncio.Future[Refusal | None]) -> None:
    refusal = await settled
    if refusal is not None:
        raise StoreError(f"the change was not stored: {refusal.value}")
