"""Members of a manifest, checked one by one.

Owns the faults and warnings while a manifest is read. Invariant: a value that is returned without a
fault has the required type and range; nothing here raises.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ManifestFault
from edgehub.routes.document import Members
from edgehub.routes.hints import near_miss

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.errors import RouteFault

_SHOWN_CHARS_MAX: Final = 60
UNKNOWN_MAX: Final = 20
"""Members of one object that are reported, each with the most similar known name."""


class ManifestReader:
    """Checks values and collects their faults."""

    def __init__(self) -> None:
        self.faults: list[ManifestFault] = []
        self.warnings: list[ManifestFault] = []

    def fault(self, path: str, message: str, hint: str = "", *, route: str | None = None) -> None:
        """Record a fault of the value at `path`."""
        self.faults.append(ManifestFault(path=path, message=message, hint=hint, route=route))

    def warn(self, path: str, message: str, hint: str = "", *, route: str | None = None) -> None:
        """Record what is accepted but probably not intended."""
        self.warnings.append(ManifestFault(path=path, message=message, hint=hint, route=route))

    def object(self, value: Any, path: str) -> dict[str, Any] | None:
        """Check for an object, None = it is none."""
        if isinstance(value, dict):
            return value
        what = "the manifest" if not path else ""
        self.fault(path, f"{what} must be an object, not {self.shown(value)}".strip())
        return None

    def integer(
        self, value: Any, path: str, least: int, most: int, *, route: str | None = None
    ) -> int | None:
        """Check for an integer within bounds, None = it is none."""
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.fault(
            path, f"must be an integer from {least} to {most}, not {self.shown(value)}", route=route
        )
        return None

    def refuse_unknown(
        self,
        members: dict[str, Any],
        known: Collection[str],
        path: str,
        *,
        route: str | None = None,
    ) -> None:
        """Refuse unknown members of an object."""
        folded = {each.lower(): each for each in known}
        unknown = [name for name in members if name not in known]
        if len(unknown) > UNKNOWN_MAX:
            more = f"{len(unknown) - UNKNOWN_MAX} more members are not known here"
            self.fault(path, more, route=route)
        for name in unknown[:UNKNOWN_MAX]:
            close = near_miss(name.lower(), folded)
            hint = f"did you mean `{folded[close]}`?" if close else f"known are {', '.join(known)}"
            self.fault(_join(path, name), "is not known here", hint, route=route)

    def refuse_repeated(
        self,
        members: dict[str, Any],
        path: str,
        *,
        except_for: Collection[str] = (),
        route: str | None = None,
    ) -> None:
        """Refuse members that an object has twice."""
        if isinstance(members, Members):
            for name in dict.fromkeys(name for name, _ in members.earlier):
                if name not in except_for:
                    self.fault(_join(path, name), "is given twice", "leave one out", route=route)

    def take_route_faults(
        self, faults: Collection[RouteFault], path: str, route: str, *, warnings: bool = False
    ) -> None:
        """Record faults, or warnings, of a route text."""
        for fault in faults:
            (self.warnings if warnings else self.faults).append(
                ManifestFault(
                    path=path,
                    message=fault.message,
                    hint=fault.hint,
                    route=route,
                    line=fault.line,
                    column=fault.column,
                )
            )

    @staticmethod
    def shown(value: Any) -> str:
        """Write a value as JSON would, cut to a readable length."""
        try:
            text = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            text = type(value).__name__
        return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
