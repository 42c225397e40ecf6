"""Responses: the hub's documents and problems as JSON.

Owns the encoding. Statistics count by members of enumerations, which JSON knows as their texts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response

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


def encoded(document: Any) -> bytes:
    r"""Write a document as JSON.

    What devices sent may hold numbers of more than 64 bits and halves of characters (`\ud800`),
    which JSON can write and the quick encoder does not.
    """
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()
