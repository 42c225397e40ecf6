"""The hub's refusal of a command."""

from __future__ import annotations

from typing import Any, Final

from edgehub.errors import EdgeHubError, fault_text

_WRONG_INPUT: Final = frozenset({"invalid_route", "invalid_manifest"})


class CommandError(EdgeHubError):
    """The hub refused a command; the text is its own, one line for each fault.

    Attributes:
        problem: Problem details, as the HTTP API has them.
    """

    def __init__(self, problem: dict[str, Any]) -> None:
        faults = problem.get("faults") or []
        super().__init__("\n".join(map(_fault_text, faults)) or problem["detail"])
        self.problem = problem

    @property
    def is_input(self) -> bool:
        """Whether a route or manifest is wrong, as its author has to correct it."""
        return self.problem["code"] in _WRONG_INPUT


def _fault_text(fault: dict[str, Any]) -> str:
    return fault_text(
        fault["path"],
        fault.get("line"),
        fault.get("column"),
        fault["message"],
        fault.get("hint", ""),
    )
