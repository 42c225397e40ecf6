"""The refusal of a request: problem details in JSON.

A pure value.

Source: RFC 9457 (problem details), RFC 9110 section 15 (status codes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from http import HTTPStatus


class RequestError(EdgeHubError):
    """A request is refused.

    Attributes:
        status: Status code.
        detail: What is wrong, where, and how to fix it.
        headers: Further response headers.
        members: Further members of the problem document, for example `index`.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members: dict[str, Any] = members

    def document(self) -> bytes:
        """Return the body of the response."""
        return orjson.dumps(
            {
                "type": "about:blank",
                "title": self.status.phrase,
                "status": self.status.value,
                "detail": self.detail,
                **self.members,
            }
        )
