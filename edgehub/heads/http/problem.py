"""Refusals of the HTTP head, and texts in them.

Pure values. Invariant: a problem never repeats a body, a password or more than a few characters of
what the client sent.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, assert_never

from edgehub.http1.refusal import RequestError
from edgehub.message import Refusal

SHOWN_CHARACTERS_MAX: Final = 40

BUSY_RETRY_S: Final = 10
LIMIT_RETRY_S: Final = 60


def unavailable(detail: str, retry_after_s: int) -> RequestError:
    """Build a 503 with the time of a retry."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE, detail, headers=(("Retry-After", str(retry_after_s)),)
    )


def not_stored(index: int, refusal: Refusal, stored: int) -> RequestError:
    """Build the response for a message that the store refused, with the number of stored ones."""
    assert refusal is not Refusal.UNROUTED, "it is acknowledged"
    status, retry_s = HTTPStatus.SERVICE_UNAVAILABLE, BUSY_RETRY_S
    match refusal:
        case Refusal.INVALID:
            status, retry_s = HTTPStatus.BAD_REQUEST, 0
            detail = f"message {index} can never be stored"
        case Refusal.RESERVED:
            status, retry_s = HTTPStatus.BAD_REQUEST, 0
            detail = f"message {index} has the content type of batches between hubs"
        case Refusal.LIMIT:
            status, retry_s = HTTPStatus.INSUFFICIENT_STORAGE, LIMIT_RETRY_S
            detail = f"message {index} is refused by a limit of the store"
        case Refusal.UNAVAILABLE:
            detail = f"which hub takes message {index} is not known now"
        case Refusal.CLOSED:
            detail = "the hub is shutting down"
        case _:
            assert_never(refusal)
    before = f"; {stored} of the request are stored" if stored else ""
    headers = (("Retry-After", str(retry_s)),) if retry_s else ()
    return RequestError(status, detail + before, headers=headers, index=index, stored=stored)


def shown(text: str) -> str:
    """Return text of a client, short and printable."""
    return ascii(text[:SHOWN_CHARACTERS_MAX])
