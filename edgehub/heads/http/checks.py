"""Checks of a request before its body is read, and its messages once it is complete.

Invariant: each byte of a body is counted before it is kept, so that the bound on memory always
holds.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from edgehub.heads.http.forms import (
    batch_messages,
    check_form,
    read_path,
    read_target,
    single_message,
)
from edgehub.heads.http.problem import BUSY_RETRY_S, unavailable
from edgehub.http1.refusal import RequestError
from edgehub.http1.rules import find_fault
from edgehub.mqtt.property_bag import PATH_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.heads.http.context import HttpContext
    from edgehub.heads.http.request import MessageRequest
    from edgehub.message import Message

PASSED_OVER_MAX: Final = 65_536
"""A refused body up to this size is read, so that the connection can stay open."""

_ALLOW: Final = (("Allow", "POST"),)


def check_head(context: HttpContext, request: MessageRequest) -> None:
    """Check a request whose headers are complete, and refuse it if they are reason enough."""
    request.body_began = context.clock.monotonic()
    try:
        _read_head(context, request)
    except RequestError as problem:
        request.refuse(problem)
        length = request.length
        request.refuse_now = length is None or length > PASSED_OVER_MAX


def check_piece(context: HttpContext, request: MessageRequest, size: int) -> None:
    """Count the next piece of a body, or refuse the request."""
    limit = _body_bytes_max(context, request)
    if request.size + size > limit:
        problem = _body_too_large(limit)
    elif not context.has_room(request, size):
        problem = unavailable("too much waits for the disk", BUSY_RETRY_S)
    else:
        assert request.reading is not None
        request.reading.used += size
        return
    context.release(request)
    request.refuse(problem)
    request.refuse_now = True


def messages_of(
    context: HttpContext, request: MessageRequest, *, may_be_hub: bool
) -> Iterator[Message]:
    """Build the messages of a whole request one by one.

    Args:
        context: Of the head.
        request: Complete.
        may_be_hub: Whether the client may be a hub, so that the path of its messages counts.

    Raises:
        LoopError: If they have passed this hub before.
        RequestError: If anything in it is malformed.
    """
    assert request.target is not None
    path = read_path(request.headers) if may_be_hub else None
    if path is not None:
        return _marked(_messages(context, request), context.hub_path.extended(path))
    return _messages(context, request)


def _marked(messages: Iterator[Message], path: str) -> Iterator[Message]:
    for message in messages:
        message.properties[PATH_PROPERTY] = path
        yield message


def _messages(context: HttpContext, request: MessageRequest) -> Iterator[Message]:
    assert request.target is not None
    body = bytes(request.body)
    bytes_max = context.settings.message_bytes_max
    now_ms = context.clock.wall_ms()
    if request.is_batch:
        return batch_messages(request.target, body, bytes_max, now_ms)
    message = single_message(request.target, request.headers, body, bytes_max, now_ms)
    return iter((message,))


def _read_head(context: HttpContext, request: MessageRequest) -> None:
    fault = find_fault(request.version, request.hosts, request.transfer_encodings)
    if fault is not None:
        raise RequestError(*fault)
    request.target = read_target(request.url, request.headers)
    if request.method != b"POST":
        raise RequestError(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "messages are sent, and methods called, by POST",
            headers=_ALLOW,
        )
    request.is_batch = check_form(request.headers)
    limit = _body_bytes_max(context, request)
    if request.length is not None and request.length > limit:
        raise _body_too_large(limit)


def _body_bytes_max(context: HttpContext, request: MessageRequest) -> int:
    settings = context.settings
    return settings.batch_bytes_max if request.is_batch else settings.message_bytes_max


def _body_too_large(limit: int) -> RequestError:
    return RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has at most {limit} bytes")
