"""One request of the HTTP head: what it is for, and where its bytes are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.http1.parser import Request

if TYPE_CHECKING:
    from edgehub.devices.bounds import Usage
    from edgehub.heads.http.forms import Target
    from edgehub.http1.refusal import RequestError


class MessageRequest(Request, eq=False):
    """A request with messages, or of a call of a method.

    Attributes:
        is_batch: Its body holds several messages.
        target: What it is for, None = that is not known yet.
        problem: Why it is refused, None = it is not.
        reading: Usage in which its bytes are counted; set with the headers.
    """

    is_batch: bool = False
    target: Target | None = None
    problem: RequestError | None = None
    reading: Usage | None = None
