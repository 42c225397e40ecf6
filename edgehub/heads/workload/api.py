"""The workload API: signatures with the key of a module, and the hub's trust bundle.

Owns the rules and the counts; no I/O. Invariant: nothing is signed with the key of a module for
anything but that module, by its socket or by the user that the identities file gives it.

Source: Azure IoT Edge, workload API, 2018-06-28 and later.
"""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson
from msgspec import Struct

from edgehub.http1.refusal import RequestError
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities

_KEY_IDS: Final = ("primary", "secondary")
_SIGN_LEVELS: Final = 5
"""`modules`, the module, `genid`, its generation, `sign`."""


class Caller(Struct, frozen=True, kw_only=True):
    """Who asks.

    Attributes:
        module: Whose socket it is, None = the shared one.
        uid: User of the process at the other end.
    """

    module: str | None
    uid: int


class WorkloadApi:
    """Answers requests of modules.

    Args:
        hub_id: The hub's; its modules are `<hub_id>/<module>`.
        identities: Their keys.
        clock: For the rate of log lines.

    Attributes:
        trust_bundle: Certificates in PEM by which modules know the hub's own.
        signed_total: Signatures made.
        refused_total: Requests refused.
    """

    def __init__(self, hub_id: str, identities: Identities, clock: Clock) -> None:
        self._hub_id = hub_id
        self._identities = identities
        self._log = LogLimit(clock)
        self.trust_bundle = ""
        self.signed_total = 0
        self.refused_total = 0

    def own_sockets(self) -> set[str]:
        """Return the modules that have a socket of their own: with a key, and without a user."""
        prefix = f"{self._hub_id}/"
        names = {
            entry.id.removeprefix(prefix)
            for entry in self._identities.entries()
            if entry.id.startswith(prefix) and entry.keys and entry.uid is None
        }
        # Names of folders that are no folder of their own.
        return names - {".", ".."}

    def answer(
        self, method: str, target: str, body: bytes, caller: Caller
    ) -> tuple[HTTPStatus, Mapping[str, Any]]:
        """Return status and document of the answer to a request."""
        try:
            return HTTPStatus.OK, self._answer(method, target, body, caller)
        except RequestError as refused:
            self.refused_total += 1
            self._log.warning(
                "workload.request_refused",
                path=target.partition("?")[0],
                socket=caller.module or "shared",
                uid=caller.uid,
                status=int(refused.status),
                reason=refused.detail,
            )
            return refused.status, {"message": refused.detail}

    def _answer(self, method: str, target: str, body: bytes, caller: Caller) -> Mapping[str, Any]:
        levels = target.partition("?")[0].strip("/").split("/")
        if levels == ["trust-bundle"]:
            _check_method(method, "GET")
            return {"certificate": self.trust_bundle}
        if len(levels) == _SIGN_LEVELS and levels[::2] == ["modules", "genid", "sign"]:
            _check_method(method, "POST")
            return {"digest": self._sign(unquote(levels[1]), body, caller)}
        raise RequestError(
            HTTPStatus.NOT_FOUND, "only /trust-bundle and /modules/<module>/genid/<id>/sign"
        )

    def _sign(self, module: str, body: bytes, caller: Caller) -> str:
        identity = self._identities.get(f"{self._hub_id}/{module}")
        is_own = identity is not None and (
            caller.uid == identity.uid if caller.module is None else caller.module == module
        )
        if identity is None or not is_own or identity.disabled:
            raise RequestError(HTTPStatus.FORBIDDEN, f"not the socket or the user of {module!r}")
        data, number = _parse(body)
        if number >= len(identity.keys):
            raise RequestError(
                HTTPStatus.NOT_FOUND,
                f"{identity.id} has no {_KEY_IDS[number]} key in the identities file",
            )
        self.signed_total += 1
        return identity.keys[number].sign(data)


def _check_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, f"{wanted} only")


def _parse(body: bytes) -> tuple[bytes, int]:
    """Return the data to sign, and the number of the key."""
    try:
        request = orjson.loads(body)
        data = base64.b64decode(request["data"], validate=True)
        number = _KEY_IDS.index(request.get("keyId", _KEY_IDS[0]))
        algorithm = request.get("algo", "HMACSHA256")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RequestError(
            HTTPStatus.BAD_REQUEST,
            'not {"keyId": "primary", "algo": "HMACSHA256", "data": "<base64>"}',
        ) from None
    if algorithm != "HMACSHA256":
        raise RequestError(HTTPStatus.BAD_REQUEST, "algo is not HMACSHA256")
    return data, number
