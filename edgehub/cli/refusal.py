"""The hub's refusal of a command."""

from __future__ import annotations

from typing import Any, Final

from edgehub.errors import EdgeHubError

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
    path = f"{fault['path']}: " if fault["path"] else ""
    place = f"line {fault['line']}, column {fault['column']}: " if "line" in fault else ""
    hint = f" ({fault['hint']})" if "hint" in fault else ""
    return f"{path}{place}{fault['message']}{hint}"
