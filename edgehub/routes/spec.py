"""One route of a manifest and the manifest itself, as immutable values.

Owns the fingerprint of a manifest.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins

from edgehub.message import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from edgehub.errors import ManifestFault
    from edgehub.message import Priority, Recency
    from edgehub.routes.query.syntax import Route


class RouteRules(Struct, frozen=True, kw_only=True):
    """How rows of one route are delivered; None = as the endpoint has it.

    Attributes:
        order: `strict` = a refused row delays later ones of its device, `skip` = they overtake it.
        max_attempts: Refusals after which a row is dead-lettered, 0 = unlimited.
        max_age_s: Age in seconds at which a row is dead-lettered, 0 = unlimited.
    """

    order: str | None = None
    max_attempts: int | None = None
    max_age_s: int | None = None


class RouteSpec(Struct, frozen=True, kw_only=True):
    """One route of a manifest.

    Attributes:
        name: Its name, unique in the manifest.
        path: Dotted path of its text in the manifest, for messages.
        route: The route text, parsed and checked.
        priority: 0 is the best, `DEFAULT_PRIORITY` where the manifest has none.
        ttl_ms: Own time to live in milliseconds, None = the global one.
        recency: Recency rule, None = none.
        rules: Delivery rules.
    """

    name: str
    path: str
    route: Route
    priority: Priority = DEFAULT_PRIORITY
    ttl_ms: int | None = None
    recency: Recency | None = None
    rules: RouteRules = RouteRules()


class Manifest(Struct, frozen=True, kw_only=True):
    """A manifest without faults.

    Attributes:
        file: Its file.
        schema_version: As written, for example `1.1`.
        routes: In the order of the document.
        global_ttl_ms: Time to live of routes without their own, in milliseconds, None = never ends.
        warnings: What was accepted but is probably not intended.
    """

    file: str
    schema_version: str
    routes: tuple[RouteSpec, ...]
    global_ttl_ms: int | None
    warnings: tuple[ManifestFault, ...]

    def ttl_ms(self, spec: RouteSpec) -> int | None:
        """Return the own or the global time to live of a route in milliseconds, None = endless."""
        return self.global_ttl_ms if spec.ttl_ms is None else spec.ttl_ms

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of all that affects routing; equal ones need not be applied again."""
        content = {
            "global_ttl_ms": self.global_ttl_ms,
            "routes": {
                spec.name: {
                    "route": spec.route.text,
                    "priority": spec.priority,
                    "ttl_ms": spec.ttl_ms,
                    "recency": spec.recency and to_builtins(spec.recency),
                    "rules": to_builtins(spec.rules),
                }
                for spec in self.routes
            },
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
