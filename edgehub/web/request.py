"""One request to the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field

from edgehub.http1.parser import Request
from edgehub.web.access import ANONYMOUS, Principal

if TYPE_CHECKING:
    from edgehub.operations.problem import ProblemError


class ApiRequest(Request, eq=False):
    """A request to the HTTP API.

    Attributes:
        verb: Its method.
        path: Path of its target, decoded.
        query: Names and values of the target's parameters.
        fields: Values of its headers, by names in small letters.
        principal: Who sends it.
        changes: Whether it may change something.
        path_arguments: Arguments in its path.
        problem: Why it is refused, None = it is not.
    """

    verb: str = ""
    path: str = ""
    query: list[tuple[str, str]] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    principal: Principal = ANONYMOUS
    changes: bool = False
    path_arguments: dict[str, str] = field(default_factory=dict)
    problem: ProblemError | None = None
