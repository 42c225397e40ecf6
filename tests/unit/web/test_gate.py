"""What every request passes, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from starlette.responses import PlainTextResponse
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.devices.token_file import Role
from edgehub.web.access import Principal
from edgehub.web.gate import Gate

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LET_IN = SimpleNamespace(
    check=lambda *_, **__: Principal("token", Role.WRITE), changes=lambda *_: True
)


SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "PUT",
    "path": "/",
    "headers": [(b"host", b"localhost")],
    "query_string": b"",
}


async def answer_of(app: ASGIApp) -> list[Message]:
    """Return what a gate sends of the answer of an application."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await Gate(app, LET_IN, ManualClock(), body_bytes_max=1)(SCOPE, None, send)
    return sent


@pytest.mark.parametrize(("status", "made"), [(200, True), (304, True), (400, False)])
async def test_only_what_was_not_refused_is_logged_as_a_change(status: int, *, made: bool) -> None:
    """A request with a fault has changed nothing."""
    with capture_logs() as lines:
        sent = await answer_of(PlainTextResponse("", status))
    assert sent[0]["status"] == status
    assert [line["event"] for line in lines] == ["web.change_made"] * made


async def test_an_answer_that_has_begun_is_followed_by_no_other() -> None:
    """A handler that fails in the middle is told by its log line alone."""

    async def fails(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise ValueError

    with capture_logs() as lines:
        assert [each["status"] for each in await answer_of(fails)] == [200]
    assert [line["event"] for line in lines] == ["web.request_failed"]
