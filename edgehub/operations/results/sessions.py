"""Sessions of MQTT clients, as operations return them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class SessionsDocument(TypedDict):
    """A page of MQTT sessions.

    Attributes:
        next: `after` of the next page, null = this is the last.
    """

    sessions: list[dict[str, Any]]
    next: str | None


class EndedSession(TypedDict):
    """Whether there was a session, and how many of its messages were dropped."""

    client_id: str
    ended: bool
    dropped: int
