"""Responses: the hub's documents and problems as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from edgehub.operations.encoding import encoded

if TYPE_CHECKING:
    from edgehub.operations.problem import ProblemError

PROBLEM_TYPE: Final = "application/problem+json"


class JsonResponse(Response):
    """A response with one document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the document."""
        return encoded(content)


def problem_response(problem: ProblemError) -> Response:
    """Return a refusal."""
    content = encoded(problem.document())
    return Response(content, problem.status.value, problem.headers, PROBLEM_TYPE)
