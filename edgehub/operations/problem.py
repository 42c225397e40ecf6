"""Refusals: one form for every error of an operation, problem details in JSON.

Owns the form and the codes. The control socket, the HTTP API and the command line show the same
members.

Source: RFC 9457 (problem details), RFC 9110 section 15 (status codes).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NotRequired

from msgspec import to_builtins
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from edgehub.device_bound.message import QueueDepthExceededError
from edgehub.devices.faults import DeviceError
from edgehub.entities.faults import (
    EntityArgumentError,
    MappingError,
    NoEntitiesError,
    NoRoomError,
    UnknownEntityError,
)
from edgehub.errors import EdgeHubError, ManifestError, ManifestFault, StoreError
from edgehub.methods.methods import MethodError, MethodNotConnectedError, MethodTimeoutError
from edgehub.operations.journal import JournalError
from edgehub.operations.operation import ArgumentError, NotFoundError
from edgehub.routes.content import InvalidRouteError
from edgehub.routes.message_form import MessageFormError
from edgehub.sync.faults import (
    ConflictError,
    OwnedByManifestError,
    PreconditionError,
    QuotaError,
    RouteNotFoundError,
    StorageUnavailableError,
    UnknownTenantError,
)
from edgehub.twins.document import TwinElsewhereError, TwinError, TwinOwnedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Problem(TypedDict):
    """Why a request was refused (RFC 9457).

    Attributes:
        type: `about:blank`: the status code says what kind it is.
        title: The status code in words.
        status: The status code.
        code: What happened, in one word that does not change.
        detail: What happened.
        hint: How to fix it.
        faults: Every single fault.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: NotRequired[str]
    faults: NotRequired[list[ManifestFault]]


class ProblemError(EdgeHubError):
    """A request is refused.

    Args:
        status: Status code.
        code: What happened, in one word of `a-z_` that programs may rely on.
        detail: What happened.
        hint: How to fix it.
        faults: Single faults, where the request is wrong in more than one place.
        headers: Further headers of an HTTP response.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        hint: str = "",
        faults: Sequence[ManifestFault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.faults = tuple(faults)
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """Return its members; a hint, and members of faults, only where there are any."""
        document: dict[str, Any] = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status.value,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            document["hint"] = self.hint
        if self.faults:
            document["faults"] = [
                {
                    name: value
                    for name, value in to_builtins(fault).items()
                    if value not in {"", None}
                }
                | {"path": fault.path}
                for fault in self.faults
            ]
        return document


def problem_of(error: EdgeHubError) -> ProblemError | None:
    """Return the problem of an operation's error, None = it is a fault of the hub."""
    if isinstance(error, ProblemError):
        return error
    row = next((row for row in PROBLEMS if isinstance(error, row[0])), None)
    if row is None:
        return None
    _, status, code, hint = row
    detail, headers = str(error), {}
    if isinstance(error, InvalidRouteError | ManifestError):
        detail, hint = str(error.faults[0]), error.faults[0].hint
    if isinstance(error, StorageUnavailableError):
        headers["Retry-After"] = "5"
    faults = getattr(error, "faults", ())
    return ProblemError(status, code, detail, hint=hint, faults=faults, headers=headers)


PROBLEMS: Final[tuple[tuple[type[EdgeHubError], HTTPStatus, str, str], ...]] = (
    (InvalidRouteError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_route", ""),
    (ManifestError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_manifest", ""),
    (RouteNotFoundError, HTTPStatus.NOT_FOUND, "route_not_found", ""),
    (UnknownTenantError, HTTPStatus.NOT_FOUND, "tenant_not_found", ""),
    (
        PreconditionError,
        HTTPStatus.PRECONDITION_FAILED,
        "other_revision",
        "read it again, and name its revision (over HTTP its ETag, as If-Match)",
    ),
    (OwnedByManifestError, HTTPStatus.CONFLICT, "owned_by_manifest", ""),
    (ConflictError, HTTPStatus.CONFLICT, "conflict", ""),
    (QuotaError, HTTPStatus.FORBIDDEN, "quota_exceeded", ""),
    (
        StorageUnavailableError,
        HTTPStatus.SERVICE_UNAVAILABLE,
        "storage_unavailable",
        "repeat it with an id; until then messages are routed by the last table",
    ),
    (ArgumentError, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_request", ""),
    (EntityArgumentError, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_request", ""),
    (MessageFormError, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_request", ""),
    (NotFoundError, HTTPStatus.NOT_FOUND, "not_found", ""),
    (
        TwinOwnedError,
        HTTPStatus.CONFLICT,
        "owned_upstream",
        "set it there, or write twins = false in [upstream]",
    ),
    (TwinElsewhereError, HTTPStatus.CONFLICT, "other_hub", ""),
    (TwinError, HTTPStatus.UNPROCESSABLE_ENTITY, "twin_refused", ""),
    (MethodNotConnectedError, HTTPStatus.NOT_FOUND, "not_connected", ""),
    (MethodTimeoutError, HTTPStatus.GATEWAY_TIMEOUT, "no_answer", "it may have been carried out"),
    (MethodError, HTTPStatus.UNPROCESSABLE_ENTITY, "method_refused", ""),
    (NoEntitiesError, HTTPStatus.NOT_FOUND, "no_entities", ""),
    (UnknownEntityError, HTTPStatus.NOT_FOUND, "unknown_entity", ""),
    (NoRoomError, HTTPStatus.INSUFFICIENT_STORAGE, "no_room", ""),
    (
        QueueDepthExceededError,
        HTTPStatus.INSUFFICIENT_STORAGE,
        "queue_depth_exceeded",
        "send it again once the client has got others, or purge what waits",
    ),
    (MappingError, HTTPStatus.CONFLICT, "refused", ""),
    (JournalError, HTTPStatus.CONFLICT, "journal", ""),
    (DeviceError, HTTPStatus.SERVICE_UNAVAILABLE, "device_source", ""),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE, "store", ""),
)
