"""Errors of the routing table."""

from __future__ import annotations

from edgehub.errors import EdgeHubError


class TableError(EdgeHubError):
    """Base of these errors, except `InvalidRouteError`."""


class RouteNotFoundError(TableError):
    """There is no such route."""

    def __init__(self, route_id: str) -> None:
        super().__init__(f"there is no route {route_id!r}")


class PreconditionError(TableError):
    """The route is not as the caller expects.

    Attributes:
        revision: Its present revision, 0 = there is no such route.
        wanted: The revision that the caller named; 0 = none, below 0 = some that never was.
    """

    def __init__(self, route_id: str, *, revision: int, wanted: int) -> None:
        present = f"has revision {revision}" if revision else "does not exist"
        named = f"revision {wanted}" if wanted > 0 else "an older one" if wanted else "none"
        super().__init__(f"route {route_id!r} {present}, the request wants {named}")
        self.revision = revision
        self.wanted = wanted


class ConflictError(TableError):
    """The table is not as the caller expects.

    Attributes:
        revision: Its present revision.
    """

    def __init__(self, reason: str, *, revision: int = 0) -> None:
        super().__init__(reason)
        self.revision = revision


class OwnedByManifestError(TableError):
    """The route belongs to a manifest's file and changes with that file alone."""

    def __init__(self, route_id: str, file: str) -> None:
        super().__init__(f"route {route_id!r} belongs to {file}; change it there and reload")


class QuotaError(TableError):
    """A tenant has as many routes as it may have.

    Attributes:
        tenant: `organisation/application`.
        limit: Their number.
    """

    def __init__(self, tenant: str, limit: int) -> None:
        super().__init__(f"tenant {tenant} has {limit} routes, which is all that it may have")
        self.tenant = tenant
        self.limit = limit


class UnknownTenantError(TableError):
    """The settings do not name the tenant."""

    def __init__(self, tenant: str) -> None:
        super().__init__(f"there is no tenant {tenant}; add it to the settings")


class StorageUnavailableError(TableError):
    """The storage of the table does not answer.

    Attributes:
        reason: Why.
        outcome_unknown: The change may have been stored nevertheless.
    """

    def __init__(self, reason: str, *, outcome_unknown: bool = False) -> None:
        doubt = "; the change may have been stored" if outcome_unknown else ""
        super().__init__(f"the storage of the routing table is unreachable: {reason}{doubt}")
        self.reason = reason
        self.outcome_unknown = outcome_unknown


class TableLostError(StorageUnavailableError):
    """The storage has lost the table that this hub knows; it will be put back."""

    def __init__(self) -> None:
        super().__init__("it has lost its data, which the hubs put back")
