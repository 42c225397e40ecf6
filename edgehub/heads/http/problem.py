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
    before = f"; {stored} of the request are stored" if stored else ""
    assert refusal is not Refusal.UNROUTED, "it is acknowledged"
    match refusal:
        case Refusal.INVALID:
            detail = f"message {index} can never be stored{before}"
            return RequestError(HTTPStatus.BAD_REQUEST, detail, index=index, stored=stored)
        case Refusal.RESERVED:
            detail = f"message {index} has the content type of batches between hubs{before}"
            return RequestError(HTTPStatus.BAD_REQUEST, detail, index=index, stored=stored)
        case Refusal.LIMIT:
            return RequestError(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"message {index} is refused by a limit of the store{before}",
                headers=(("Retry-After", str(LIMIT_RETRY_S)),),
                index=index,
                stored=stored,
            )
        case Refusal.UNAVAILABLE:
            problem = unavailable(
                f"which hub takes message {index} is not known now{before}", BUSY_RETRY_S
            )
            problem.members.update(index=index, stored=stored)
            return problem
        case Refusal.CLOSED:
            problem = unavailable(f"the hub is shutting down{before}", BUSY_RETRY_S)
            problem.members.update(index=index, stored=stored)
            return problem
        case _:
            assert_never(refusal)


def shown(text: str) -> str:
    """Return text of a client, short and printable."""
    return ascii(text[:SHOWN_CHARACTERS_MAX])
