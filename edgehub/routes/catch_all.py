"""Catch-alls: routes that take every message of devices and modules.

Owns what counts as one, and the words that warn of the loss of the last one. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.routes.query.syntax import Literal
from edgehub.routes.source import PathSource

if TYPE_CHECKING:
    from edgehub.routes.query.syntax import Expression, Route

CATCH_ALL_KEYS: Final = ("/", "/MESSAGES/")
"""Sources, as they are compared, that take everything that devices and modules send."""

_TEXT: Final = "FROM /messages/* INTO $upstream"
_LOST: Final = "from now on messages that match no route are acknowledged and dropped"
LOST_OF_MANIFEST: Final = f'{_LOST}; add `"rest": "{_TEXT}"` to keep them'
LOST_OF_TABLE: Final = f"{_LOST}; `edgehub route add --id rest '{_TEXT}'` keeps them"


def is_always_true(condition: Expression | None) -> bool:
    """Return whether a condition takes every message; None = there is none."""
    return condition is None or (isinstance(condition, Literal) and condition.value is True)


def is_catch_all(route: Route) -> bool:
    """Return whether a route takes every message of devices and modules."""
    source = route.source
    wide = isinstance(source, PathSource) and source.key in CATCH_ALL_KEYS
    return wide and is_always_true(route.condition.expression)
