"""Catch-alls: routes that take every message of devices and modules.

Owns the rule, and the warnings where there is none. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.errors import ManifestFault
from edgehub.routes.query.syntax import Literal
from edgehub.routes.source import PathSource

if TYPE_CHECKING:
    from edgehub.routes.query.syntax import Expression, Route
    from edgehub.routes.spec import Manifest

CATCH_ALL_KEYS: Final = ("/", "/MESSAGES/")
"""Sources, as they are compared, that take everything that devices and modules send."""

_TEXT: Final = "FROM /messages/* INTO $upstream"
_DROPPED: Final = "messages that match no route are acknowledged and dropped"
_LOST: Final = f"from now on {_DROPPED}"
LOST_OF_MANIFEST: Final = f'{_LOST}; add `"rest": "{_TEXT}"` to keep them'
LOST_OF_TABLE: Final = f"{_LOST}; `edgehub route add --id rest '{_TEXT}'` keeps them"


def lost_warnings(had: bool, has: bool, text: str = LOST_OF_MANIFEST) -> tuple[str, ...]:
    """Return the warning of a change of routes that removes the last catch-all."""
    return (text,) if had and not has else ()


def is_always_true(condition: Expression | None) -> bool:
    """Return whether a condition takes every message; None = there is none."""
    return condition is None or (isinstance(condition, Literal) and condition.value is True)


def is_catch_all(route: Route) -> bool:
    """Return whether a route takes every message of devices and modules."""
    return _is_wide(route) and is_always_true(route.condition.expression)


def _is_wide(route: Route) -> bool:
    source = route.source
    return isinstance(source, PathSource) and source.key in CATCH_ALL_KEYS


def missing_warnings(manifest: Manifest) -> tuple[ManifestFault, ...]:
    """Return a warning if all routes for messages of devices have conditions.

    A manifest that has routes of modules or topics alone is not for messages of devices.
    """
    wide = [spec.route for spec in manifest.routes if _is_wide(spec.route)]
    if not wide or any(is_always_true(route.condition.expression) for route in wide):
        return ()
    message = f"no route takes all messages: {_DROPPED}"
    hint = f'to keep them add `"rest": "{_TEXT}"`'
    return (ManifestFault(path="routes", message=message, hint=hint),)
