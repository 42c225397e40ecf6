"""The command that calls a direct method, as the control socket and the HTTP API carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.methods.methods import MethodCall
from edgehub.operations.arguments import CLIENT, client_of, document
from edgehub.operations.operation import Operation, Resource
from edgehub.operations.twins import PATH

if TYPE_CHECKING:
    from edgehub.methods.methods import Methods

_CALL: Final = (
    "an object with `methodName`, and `payload`, `responseTimeoutInSeconds` (30) and "
    "`connectTimeoutInSeconds` (0) if wanted"
)


class MethodOperations:
    """The operation on direct methods."""

    __slots__ = ("_methods",)

    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="method invoke",
                about="Call a method of a connected device or module, and return its answer.",
                handler=self._call,
                result="edgehub.operations.results.twins:MethodDocument",
                arguments=(*CLIENT, document("call", _CALL, required=True)),
                changes=True,
                resource=Resource(method="POST", path=f"{PATH}/methods", body="call"),
            )
        ]

    async def _call(self, *, call: Any, **client: Any) -> dict[str, Any]:
        result = await self._methods.call(client_of(**client), MethodCall.parse(call))
        return {"status": result.status, "payload": _payload(result.payload)}


def _payload(text: bytes) -> Any:
    """Return what a client has answered; what is no JSON as a text."""
    if not text:
        return None
    try:
        return orjson.loads(text)
    except ValueError:
        return text.decode(errors="backslashreplace")
