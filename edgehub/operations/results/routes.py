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


class DriftDocument(TypedDict):
    """A comparison of this hub's table with the storage.

    Attributes:
        at_ms: When, in milliseconds since 1970; `at` is the same as a text.
        revision: Of the table.
        compared: Number of routes.
        missing: Routes of the storage that did not run here.
        extra: Routes that ran here and are not in the storage.
        changed: Routes that ran here with another content.
        failed: Routes that cannot be built; they were tried again.
        total: Number of the first three.
        repaired: Number of routes that were changed here by this.
        restored: Rows that this hub has put back into the storage, because it had lost them.
        duration_ms: How long it took.
    """

    at: str
    at_ms: int
    revision: int
    compared: int
    missing: list[str]
    extra: list[str]
    changed: list[str]
    failed: list[str]
    total: int
    repaired: int
    restored: int
    duration_ms: int


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
        fingerprint: SHA-256 of its content.
        global_ttl_s: Time to live of routes without one of their own, null = unlimited.
    """

    file: str
    fingerprint: str
    schema_version: str
    global_ttl_s: int | None
    routes: list[dict[str, Any]]
    warnings: list[str]


class ManifestHead(TypedDict):
    """A manifest, and how many routes it has.

    Attributes:
        fingerprint: SHA-256 of its content.
    """

    file: str
    fingerprint: str
    routes: int


class ManifestDifferenceDocument(TypedDict):
    """What another manifest would change; `faults` alone if it is refused.

    Attributes:
        hint: What to do about a shared table, may be empty.
    """

    faults: list[dict[str, Any]]
    in_force: NotRequired[ManifestHead]
    new: NotRequired[ManifestHead]
    hint: NotRequired[str]
    same: NotRequired[bool]
    routes: NotRequired[dict[str, Any]]
    class_changes: NotRequired[list[dict[str, Any]]]
    snapshots: NotRequired[list[dict[str, Any]]]
    queues: NotRequired[list[dict[str, Any]]]
    disk: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]
