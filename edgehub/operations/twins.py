"""Commands on twins, as the control socket and the HTTP API carry them.

Owns nothing; asks the twins. A twin is written in the form of Azure IoT Hub's service API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.devices.ids import ID_RULE, is_device_id
from edgehub.errors import StoreError
from edgehub.operations.arguments import document, text, whole
from edgehub.operations.operation import ArgumentError, NotFoundError, Operation, Resource
from edgehub.operations.results import twins as results
from edgehub.store.failure import settling
from edgehub.twins.document import TwinOwnedError, check_patch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from edgehub.message import Refusal
    from edgehub.twins.twins import ClientTwins

    Arguments = Mapping[str, Any]

PAGE_MAX: Final = 1000
PATH: Final = "/api/v1/twins/{device_id}"
CLIENT: Final = (
    text("device_id", "Id of the device.", required=True),
    text("module_id", "Id of its module; absent = the device itself."),
)


class TwinOperations:
    """Operations on twins.

    Args:
        twins: The twins of the hub's clients.
        is_known: Returns whether there is a client of an id, with or without a twin.
        is_owned: Returns whether the peer upstream says what is desired of a client.
    """

    def __init__(
        self,
        twins: ClientTwins,
        *,
        is_known: Callable[[str], bool],
        is_owned: Callable[[str], bool],
    ) -> None:
        self._twins = twins
        self._is_known = is_known
        self._is_owned = is_owned

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="twin list",
                about="List devices and modules that have a twin, a page at a time.",
                handler=self._list,
                result=results.TwinsDocument,
                arguments=(
                    text("after", "Client id of the last one before."),
                    whole("limit", "Most of them.", default=100, maximum=PAGE_MAX),
                ),
                resource=Resource(method="GET", path="/api/v1/twins"),
            ),
            Operation(
                name="twin show",
                about="Show the twin of a device or module.",
                handler=self._show,
                result=results.TwinDocument,
                arguments=CLIENT,
                resource=Resource(method="GET", path=PATH),
            ),
            Operation(
                name="twin set",
                about="Merge a patch into desired properties and tags of a twin.",
                handler=self._set,
                result=results.TwinDocument,
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
                result=results.RemovedTwin,
                arguments=CLIENT,
                changes=True,
                resource=Resource(method="DELETE", path=PATH),
            ),
        ]

    async def _list(self, arguments: Arguments) -> dict[str, Any]:
        after, limit = arguments.get("after") or "", arguments["limit"]
        page = sorted(client_id for client_id in self._twins.ids() if client_id > after)
        rows = [self._row(client_id) for client_id in page[:limit]]
        return {"twins": rows, "next": page[limit - 1] if 0 < limit < len(page) else None}

    async def _show(self, arguments: Arguments) -> dict[str, Any]:
        return self._document(self._known(arguments))

    async def _set(self, arguments: Arguments) -> dict[str, Any]:
        client_id = self._known(arguments)
        desired, tags = _sections(arguments["patch"])
        if desired and self._is_owned(client_id):
            raise TwinOwnedError(client_id)
        before = self._twins.get(client_id)
        twin = before.desire(desired) if desired else before
        twin = twin.tag(tags) if tags else twin
        if twin is not before:
            settle, settled = settling()
            self._twins.put(client_id, twin, settle, patch=desired)
            await _stored(settled)
        return self._document(client_id)

    async def _remove(self, arguments: Arguments) -> dict[str, Any]:
        client_id = client_of(arguments)
        settle, settled = settling()
        removed = self._twins.remove(client_id, settle)
        if removed:
            await _stored(settled)
        return {"client_id": client_id, "removed": removed}

    def _known(self, arguments: Arguments) -> str:
        client_id = client_of(arguments)
        if not self._is_known(client_id):
            raise NotFoundError(
                f"there is no client {client_id}: it has no identity and no twin, and is not "
                "connected (connect it, or add it with `edgehub identity add`)"
            )
        return client_id

    def _row(self, client_id: str) -> dict[str, Any]:
        twin = self._twins.get(client_id)
        return {
            "client_id": client_id,
            "desired_version": twin.desired_version,
            "reported_version": twin.reported_version,
        }

    def _document(self, client_id: str) -> dict[str, Any]:
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
        }


def client_of(arguments: Arguments) -> str:
    """Return the client id that arguments name.

    Raises:
        ArgumentError: It is none.
    """
    names = [arguments["device_id"]]
    if arguments.get("module_id") is not None:
        names.append(arguments["module_id"])
    for name in names:
        if not is_device_id(name):
            raise ArgumentError(f"{name!a} is no id; one has {ID_RULE}")
    return "/".join(names)


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
