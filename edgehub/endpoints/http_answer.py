"""The meaning of an answer of an HTTP peer for the rows of its request.

Pure. Invariant: a row counts as delivered only by a status of 200 to 299 that is its own or its
request's; what a peer says about one row has no effect on another.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from msgspec import DecodeError, Struct, ValidationError, field, json

from edgehub.http1.date import read_http_date
from edgehub.message import DELIVERED, FailureKind, SendResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.endpoints.http_link import Answer

RETRY_AFTER_MAX_S: Final = 3600.0
"""Longer pauses of a peer are cut to this."""

_SAID_MAX: Final = 120
_UNAUTHORIZED: Final = {401, 407}
_FORBIDDEN: Final = 403
_BAD_ROWS: Final = {400, 422}
_THROTTLED: Final = 429
_UNAVAILABLE: Final = 503
_TOO_LARGE: Final = 413


class RequestResult(Struct, frozen=True, kw_only=True):
    """The results of the rows of a request, and what to do next.

    Attributes:
        result: Holds for each row of the request that `by_id` does not name.
        by_id: Results of rows by message id.
        pauses: The same is true of rows that were not sent yet.
        splits: A request of several rows is to be sent again in parts; not authorized: only where
            they are of several senders.
        doubtful: The peer itself may fail, rather than a row.
        broken: Why the peer cannot be used at all, empty = it can.
    """

    result: SendResult = DELIVERED
    by_id: Mapping[str, SendResult] = field(default_factory=dict)
    pauses: bool = False
    splits: bool = False
    doubtful: bool = False
    broken: str = ""


def interpret(answer: Answer, now_ms: int) -> RequestResult:
    """Return what an answer means.

    Args:
        answer: The answer.
        now_ms: UTC in milliseconds since 1970, for a Retry-After with a date.
    """
    status = answer.status
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return _accepted(answer)
    if status < HTTPStatus.BAD_REQUEST:
        place = _short(answer.headers.get("location", "nowhere"))
        return RequestResult(
            broken=f"{status}: redirects to {place} are not followed; correct the url"
        )
    reason = _reason(answer)
    retry_after_s = _retry_after_s(answer, now_ms)
    if status == _THROTTLED or (status == _UNAVAILABLE and retry_after_s is not None):
        result = SendResult(FailureKind.THROTTLED, reason, retry_after_s)
        return RequestResult(result=result, pauses=True)
    if status in _UNAUTHORIZED:
        return RequestResult(result=SendResult(FailureKind.UNAUTHORIZED, reason), pauses=True)
    kind = _row_kind(status)
    return RequestResult(
        result=SendResult(kind, reason), splits=True, doubtful=kind is FailureKind.TRANSIENT
    )


class _RowAnswer(Struct):
    id: str
    status: int
    reason: Any = ""


class _RowAnswers(Struct):
    results: list[_RowAnswer] | None = None


def _accepted(answer: Answer) -> RequestResult:
    if not answer.body.lstrip().startswith(b"{"):
        return RequestResult()
    try:
        results = json.decode(answer.body, type=_RowAnswers).results or []
    except ValidationError as error:
        return RequestResult(
            broken=f"results of the answer: {error}; what was delivered is not known"
        )
    except DecodeError:
        return RequestResult()
    return RequestResult(by_id={each.id: _row_result(each.status, each.reason) for each in results})


def _row_result(status: int, said: object) -> SendResult:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return DELIVERED
    text = said if isinstance(said, str) else ""
    return SendResult(_row_kind(status), _with_phrase(status, text))


def _row_kind(status: int) -> FailureKind:
    if status in _BAD_ROWS:
        return FailureKind.REJECTED
    if status == _FORBIDDEN:
        return FailureKind.NOT_AUTHORIZED
    return FailureKind.TOO_LARGE if status == _TOO_LARGE else FailureKind.TRANSIENT


def _reason(answer: Answer) -> str:
    said = ""
    kind = answer.headers.get("content-type", "")
    if "json" in kind:
        try:
            document = json.decode(answer.body)
        except DecodeError:
            document = None
        if isinstance(document, dict):
            texts = [document.get(name) for name in ("detail", "reason", "message", "title")]
            said = next((text for text in texts if isinstance(text, str) and text), "")
    elif kind.startswith("text/plain"):
        said = answer.body.decode("utf-8", "replace")
    return _with_phrase(answer.status, said)


def _with_phrase(status: int, said: str) -> str:
    try:
        words = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        words = str(status)
    return f"{words}: {_short(said)}" if said else words


def _short(text: str) -> str:
    # Texts of a peer end up in logs and dead letters.
    return ascii(" ".join(text[:_SAID_MAX].split()))[1:-1]


def _retry_after_s(answer: Answer, now_ms: int) -> float | None:
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(RETRY_AFTER_MAX_S, float(text[:9]))
    until = read_http_date(text)
    if until is None:
        return None
    # The peer's own date, where it gives one: the clock of a gateway may be wrong.
    now = read_http_date(answer.headers.get("date", ""))
    wait_s = until - (now_ms / 1000 if now is None else now)
    return min(RETRY_AFTER_MAX_S, max(0.0, wait_s))
