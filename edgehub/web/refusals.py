"""Errors of operations as problems, and tenants from requests.

Pure; loaded with the packages of the `web` extra.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from edgehub.devices.faults import DeviceError
from edgehub.entities.faults import (
    EntityArgumentError,
    MappingError,
    NoEntitiesError,
    NoRoomError,
    UnknownEntityError,
)
from edgehub.errors import ManifestError, StoreError
from edgehub.operations.journal import JournalError
from edgehub.operations.operation import ArgumentError, NotFoundError
from edgehub.routes.message_form import MessageFormError
from edgehub.routes.tenant import DEFAULT_TENANT, Tenant
from edgehub.sync.faults import (
    ConflictError,
    InvalidRouteError,
    OwnedByManifestError,
    PreconditionError,
    QuotaError,
    RouteNotFoundError,
    StorageUnavailableError,
    UnknownTenantError,
)
from edgehub.web.problem import Fault, ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from edgehub.errors import EdgeHubError, ManifestFault
    from edgehub.web.access import Principal

_PARAMETER: Final = "query.tenant"


def problem_of(error: EdgeHubError) -> ProblemError | None:
    """Return the answer to an error of an operation, None = it is a fault of the hub."""
    kind = next((kind for kind in _PROBLEMS if isinstance(error, kind)), None)
    return None if kind is None else _PROBLEMS[kind](error)


def tenant_of(text: str | None, request: Request) -> Tenant:
    """Return the tenant of a request.

    Args:
        text: Its parameter, `org/application`, None = the one of who asks.
        request: Knows who asks.

    Raises:
        ProblemError: 422 if the parameter is no tenant, 403 if who asks belongs to another one.
    """
    principal: Principal = request.state.principal
    own = principal.tenant
    try:
        wanted = None if text is None else Tenant.parse(text)
        if own is None:
            return DEFAULT_TENANT if wanted is None else wanted
        mine = Tenant.parse(own)
    except ValueError as error:
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_tenant",
            str(error),
            faults=[Fault(path=_PARAMETER, message=str(error))],
        ) from error
    if wanted not in {None, mine}:
        raise ProblemError(
            HTTPStatus.FORBIDDEN, "other_tenant", f"the token {principal.name!r} is for {own} only"
        )
    return mine


def _invalid(error: InvalidRouteError) -> ProblemError:
    first = error.faults[0]
    return ProblemError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_route",
        str(first),
        hint=first.hint,
        faults=[_fault(fault) for fault in error.faults],
    )


def _invalid_manifest(error: ManifestError) -> ProblemError:
    return ProblemError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_manifest",
        str(error.faults[0]),
        faults=[_fault(fault) for fault in error.faults],
    )


def _fault(fault: ManifestFault) -> Fault:
    return Fault(
        path=fault.path,
        message=fault.message,
        hint=fault.hint,
        route=fault.route,
        line=fault.line,
        column=fault.column,
    )


def _unavailable(error: StorageUnavailableError) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "storage_unavailable",
        str(error),
        hint="a PUT may be repeated; messages are routed by the last table meanwhile",
        headers={"Retry-After": "5"},
    )


def _plain(status: HTTPStatus, code: str, hint: str = "") -> Callable[[EdgeHubError], ProblemError]:
    return lambda error: ProblemError(status, code, str(error), hint=hint)


_PROBLEMS: Final[dict[type[EdgeHubError], Callable[..., ProblemError]]] = {
    InvalidRouteError: _invalid,
    RouteNotFoundError: _plain(HTTPStatus.NOT_FOUND, "route_not_found"),
    UnknownTenantError: _plain(HTTPStatus.NOT_FOUND, "tenant_not_found"),
    PreconditionError: _plain(
        HTTPStatus.PRECONDITION_FAILED,
        "other_revision",
        "read it again, and send its ETag as If-Match",
    ),
    OwnedByManifestError: _plain(HTTPStatus.CONFLICT, "owned_by_manifest"),
    ConflictError: _plain(HTTPStatus.CONFLICT, "conflict"),
    QuotaError: _plain(HTTPStatus.FORBIDDEN, "quota_exceeded"),
    StorageUnavailableError: _unavailable,
    ManifestError: _invalid_manifest,
    ArgumentError: _plain(HTTPStatus.UNPROCESSABLE_ENTITY, "bad_request"),
    EntityArgumentError: _plain(HTTPStatus.UNPROCESSABLE_ENTITY, "bad_request"),
    MessageFormError: _plain(HTTPStatus.UNPROCESSABLE_ENTITY, "bad_request"),
    NotFoundError: _plain(HTTPStatus.NOT_FOUND, "not_found"),
    NoEntitiesError: _plain(HTTPStatus.NOT_FOUND, "no_entities"),
    UnknownEntityError: _plain(HTTPStatus.NOT_FOUND, "unknown_entity"),
    NoRoomError: _plain(HTTPStatus.INSUFFICIENT_STORAGE, "no_room"),
    MappingError: _plain(HTTPStatus.CONFLICT, "refused"),
    JournalError: _plain(HTTPStatus.CONFLICT, "journal"),
    DeviceError: _plain(HTTPStatus.SERVICE_UNAVAILABLE, "device_source"),
    StoreError: _plain(HTTPStatus.SERVICE_UNAVAILABLE, "store"),
}
