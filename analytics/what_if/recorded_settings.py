"""What a hub had in force on a day: routes, limits, and when links were to be open.

Pure Python. Owns what the `settings` lines of a journal mean to scenarios.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from analytics.what_if.limits import OVERFLOWS, SimulatedLimits
from analytics.what_if.recorded import LINK, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analytics.what_if.recorded import Parcel


class RecordedSettings:
    """What a hub had in force, by the last such line of the day.

    Attributes:
        routes: Its table of routes.
        caps: SimulatedLimits by their names in the settings.
        midnight_ms: Hub time of 00:00, None = not known.
    """

    def __init__(self, parcels: Sequence[Parcel]) -> None:
        content = next((each.text for each in reversed(parcels) if each.kind == SETTINGS), None)
        members = json.loads(content) if content else {}
        self.routes: list[dict[str, Any]] = members.get("routes") or []
        self.caps: dict[str, Any] = members.get("caps") or {}
        self._endpoints: dict[str, Any] = members.get("endpoints") or {}
        self.midnight_ms = next(
            (each.at_ms - int(each.text) for each in parcels if each.kind == LINK and each.text),
            None,
        )

    def has_windows(self, endpoint: str) -> bool:
        """Return whether the link was to be open in windows only."""
        return bool(self._endpoints.get(endpoint, {}).get("open_at"))

    def limits(self, changes: Mapping[str, int | str], *, is_alone: bool) -> SimulatedLimits | str:
        """Return the limits of a scenario, or why they cannot be simulated."""
        known: dict[str, Any] = {
            name: self.caps.get(name, 0) for name in SimulatedLimits._fields[:-1]
        }
        if isinstance(known["bytes_max"], str):
            # A share of a volume whose size no line has.
            known["bytes_max"] = 0
        overflow = changes.get("overflow", self.caps.get("overflow", OVERFLOWS[0]))
        if overflow not in OVERFLOWS:
            return f"with overflow {overflow} senders may repeat what was refused"
        if not is_alone:
            of_all = ("rows_max", "bytes_max")
            if not changes.keys().isdisjoint(of_all):
                return "several endpoints share the limits of all queues"
            known |= dict.fromkeys(of_all, 0)
        return SimulatedLimits(**{**known, **changes, "overflow": overflow})
