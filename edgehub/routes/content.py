"""The content of a route without its names: canonical form and hash.

Owns which members belong to a route and which are kept by the hub. Invariant: equal contents of
one tenant have equal canonical text and hash, whatever the order, the white space between members
and the members at their default in what was sent; contents of two tenants never have.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.errors import EdgeHubError, ManifestFault
from edgehub.message import DEFAULT_PRIORITY
from edgehub.routes.members import ManifestReader
from edgehub.routes.query.text import lone_surrogate_at
from edgehub.routes.route_entry import read_route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.routes.spec import RouteSpec
    from edgehub.routes.tenant import Tenant

SERVER_KEPT: Final = frozenset(
    {
        "created",
        "file",
        "hash",
        "live_hash",
        "modified",
        "origin",
        "reason",
        "revision",
        "shared_with",
        "state",
        "status",
        "tenant",
        "url",
    }
)
"""Members of an answer that may be sent back; they are ignored."""

_NOT_CONTENT: Final = frozenset({"id", "enabled", "name", "description"})
CONTENT_BYTES_MAX: Final = 65_536
DESCRIPTION_CHARS_MAX: Final = 1_024
AT_ONCE_CHARS: Final = 1_000
"""Longer route texts are read in a thread, six milliseconds for each thousand characters."""

DISPLAY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,127}")
_NAME: Final = "route"
_MINOR: Final = 3


class InvalidRouteError(EdgeHubError):
    """A route cannot be taken as it is.

    Attributes:
        faults: All that is wrong, with path, and line and column in the route text; never empty.
    """

    def __init__(self, faults: Sequence[ManifestFault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class RouteContent(Struct, frozen=True, kw_only=True):
    """A checked route.

    Attributes:
        tenant: Tenant whose messages it takes.
        members: As in a manifest, without those at their default, `name` and `description`.
        text: The same as canonical JSON: sorted names, no white space, whole numbers.
        hash: SHA-256 of `text` and the tenant, in hexadecimal.
        spec: The same, parsed; its name and path are not used.
    """

    tenant: Tenant
    members: dict[str, Any]
    text: str
    hash: str
    spec: RouteSpec


class SubmittedRoute(Struct, frozen=True, kw_only=True):
    """A route that was submitted, checked.

    Attributes:
        content: The route.
        route_id: Its id, None = it has none.
        enabled: Whether it is to run.
        warnings: What is allowed but probably not intended.
    """

    content: RouteContent
    route_id: str | None
    enabled: bool
    warnings: tuple[ManifestFault, ...]


def read_body(body: object, tenant: Tenant) -> SubmittedRoute:
    """Read a route as it is sent to the hub: a string, or an object as in a manifest.

    Args:
        body: JSON value; see `docs/explanation/routing-table.md`.
        tenant: Its tenant.

    Raises:
        InvalidRouteError: With all faults.
    """
    faults: list[ManifestFault] = []
    members: Any = body
    route_id, enabled, name, description = None, True, "", ""
    if isinstance(body, dict):
        members = {
            member: value
            for member, value in body.items()
            if member not in SERVER_KEPT and member not in _NOT_CONTENT
        }
        route_id = _text(faults, body, "id")
        name = _text(faults, body, "name") or ""
        description = _text(faults, body, "description") or ""
        enabled = body.get("enabled", True)
        if not isinstance(enabled, bool):
            faults.append(ManifestFault(path="enabled", message="must be true or false"))
            enabled = True
    if len(description) > DESCRIPTION_CHARS_MAX:
        reason = f"has more than {DESCRIPTION_CHARS_MAX} characters"
        faults.append(ManifestFault(path="description", message=reason))
    if name and DISPLAY_NAME.fullmatch(name) is None:
        reason = "want 1 to 128 letters, digits, blanks and . _ -, the first a letter or digit"
        faults.append(ManifestFault(path="name", message=reason))
    read = ManifestReader()
    spec = read_route(read, _NAME, members, minor=_MINOR)
    faults += [_placed(fault) for fault in read.faults]
    if spec is None or faults:
        raise InvalidRouteError(faults)
    content = content_of(spec, tenant, name=name, description=description)
    if len(content.text.encode()) > CONTENT_BYTES_MAX:
        reason = f"the route has more than {CONTENT_BYTES_MAX} bytes"
        raise InvalidRouteError([ManifestFault(path="route", message=reason)])
    warnings = tuple(_placed(warning) for warning in read.warnings)
    return SubmittedRoute(content=content, route_id=route_id, enabled=enabled, warnings=warnings)


def content_of(
    spec: RouteSpec, tenant: Tenant, *, name: str = "", description: str = ""
) -> RouteContent:
    """Return the content of a route of a manifest, or of one with name and description."""
    members: dict[str, Any] = {"route": spec.route.text}
    if spec.priority != DEFAULT_PRIORITY:
        members["priority"] = spec.priority
    if spec.ttl_ms is not None:
        members["timeToLiveSecs"] = spec.ttl_ms // 1000
    if spec.recency is not None:
        members["Recency"] = {"Seconds": spec.recency.seconds}
        if spec.recency.fallback_priority != DEFAULT_PRIORITY:
            members["Recency"]["FallbackPriority"] = spec.recency.fallback_priority
    rules = (
        ("order", spec.rules.order),
        ("maxAttempts", spec.rules.max_attempts),
        ("maxAgeSecs", spec.rules.max_age_s),
        ("name", name or None),
        ("description", description or None),
    )
    members |= {member: value for member, value in rules if value is not None}
    text = _canonical(members)
    return RouteContent(
        tenant=tenant, members=members, text=text, hash=content_hash(text, tenant), spec=spec
    )


def read_stored(text: str, tenant: Tenant) -> RouteContent:
    """Read a canonical text from a storage.

    Raises:
        InvalidRouteError: It is none, or its route cannot be compiled.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = ManifestFault(path="", message=f"not JSON: {error}")
        raise InvalidRouteError([fault]) from error
    return read_body(body, tenant).content


def content_hash(text: str, tenant: Tenant) -> str:
    """Return the hash of a canonical text; see ADR 0016.

    The tenant is a member of the hashed document, so that no two of them ever share a live route.
    """
    document = f'{{"route":{text},"tenant":{_canonical([tenant.org, tenant.app])}}}'
    return hashlib.sha256(document.encode()).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _text(faults: list[ManifestFault], body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or lone_surrogate_at(value) is not None or "\0" in value:
        faults.append(ManifestFault(path=name, message="must be text"))
        return None
    return value


def _placed(fault: ManifestFault) -> ManifestFault:
    """Return a fault without the name that the route has while it is read."""
    path = fault.path.removeprefix(f"routes.{_NAME}").removeprefix(".")
    return replace(fault, path=path or "route", route=None)
