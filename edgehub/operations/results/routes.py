"""Routes, as operations return them."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from edgehub.sync.views import Applied, InstanceView, RouteStatus


class RouteDocument(TypedDict):
    """One route of the table, with the members of a manifest's entry.

    Attributes:
        route: Its text; absent = it cannot be read.
        hash: SHA-256 of its canonical content.
        revision: Of its latest change; 0 = a manifest's file has it.
        origin: `api` or `manifest`.
        file: The manifest that it belongs to.
        state: On this hub: `running`, `failed`, `disabled` or `pending`.
        reason: Why it does not run.
        live_hash: Hash of what runs under the id.
        shared_with: Other ids with the same content.
    """

    id: str
    tenant: NotRequired[str]
    route: NotRequired[str]
    priority: NotRequired[int]
    timeToLiveSecs: NotRequired[int]
    enabled: bool
    hash: str
    revision: int
    origin: str
    file: str | None
    created: str | None
    modified: str | None
    state: str
    reason: str | None
    live_hash: str | None
    shared_with: list[str]


class ShownRoute(RouteDocument):
    """One route, and its state on every hub that shares the table.

    Attributes:
        instances: Empty while the table's storage is unreachable.
    """

    instances: list[RouteStatus]


class RoutesDocument(TypedDict):
    """A page of routes, by id.

    Attributes:
        next: `after` of the next page, null = this is the last.
        revision: Of the table.
    """

    routes: list[RouteDocument]
    next: str | None
    revision: int


class WrittenDocument(TypedDict):
    """The outcome of a change.

    Attributes:
        route: As it is now, null = removed.
        created: It is new.
        changed: False: the content was the same, nothing was stored.
        revision: Of the table after it.
        applied: With `wait` only, else null.
        warnings: What is accepted but probably a mistake.
    """

    route: RouteDocument | None
    created: bool
    changed: bool
    revision: int
    applied: Applied | None
    warnings: list[str]


class InstancesDocument(TypedDict):
    """The hubs that share the table."""

    instances: list[InstanceView]


class ExplanationDocument(TypedDict):
    """Which routes take a message.

    Attributes:
        of: `hub`: by the routes of the running hub.
        routes: With `outcome` and `reason` of each.
    """

    of: str
    manifest: str
    routes: list[dict[str, Any]]


class ManifestDocument(TypedDict):
    """The routes in force.

    Attributes:
        global_ttl_s: Time to live of routes without one of their own, null = unlimited.
    """

    file: str
    schema_version: str
    global_ttl_s: int | None
    routes: list[dict[str, Any]]
    warnings: list[str]


class ManifestDifferenceDocument(TypedDict):
    """What another manifest would change; `faults` alone if it is refused."""

    faults: list[dict[str, Any]]
    same: NotRequired[bool]
    routes: NotRequired[dict[str, Any]]
    class_changes: NotRequired[list[dict[str, Any]]]
    snapshots: NotRequired[list[dict[str, Any]]]
    queues: NotRequired[list[dict[str, Any]]]
    disk: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]
