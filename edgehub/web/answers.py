"""Answers: the hub's documents and problems as JSON, and how they are written."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.operations.encoding import encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.operations.problem import ProblemError

PROBLEM_TYPE: Final = "application/problem+json"

_ALWAYS: Final = (
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
    b"Cache-Control: no-store\r\n"
)


class ApiAnswer(Struct, frozen=True):
    """An answer.

    Attributes:
        body: Its body.
        status: Its status code.
        media_type: Of the body.
        headers: Further headers.
    """

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    media_type: str = "application/json"
    headers: Mapping[str, str] | None = None

    def written(self, date: bytes, *, has_body: bool, is_last: bool) -> bytes:
        """Return it as it is sent.

        Args:
            date: The line of the header Date.
            has_body: Whether the body follows; the answer to a HEAD is without.
            is_last: Whether the connection ends with it.
        """
        lines = (
            f"HTTP/1.1 {self.status:d} {self.status.phrase}\r\n"
            f"Content-Type: {self.media_type}\r\nContent-Length: {len(self.body)}\r\n"
        )
        for name, value in (self.headers or {}).items():
            lines += f"{name}: {value}\r\n"
        if is_last:
            lines += "Connection: close\r\n"
        head = lines.encode("latin-1") + _ALWAYS + date + b"\r\n"
        return head + self.body if has_body else head


def json_answer(
    document: Any, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> ApiAnswer:
    """Return an answer with one document."""
    return ApiAnswer(encoded(document), status, headers=headers)


def problem_answer(problem: ProblemError) -> ApiAnswer:
    """Return a refusal."""
    return ApiAnswer(encoded(problem.document()), problem.status, PROBLEM_TYPE, problem.headers)
