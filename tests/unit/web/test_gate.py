"""What every request passes, without a server."""

from __future__ import annotations

from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.devices.token_file import Role
from edgehub.operations.problem import ProblemError
from edgehub.web.access import Principal
from edgehub.web.answers import ApiAnswer
from edgehub.web.gate import Gate
from edgehub.web.request import ApiRequest

if TYPE_CHECKING:
    from edgehub.web.routes import Handler

LET_IN = SimpleNamespace(
    check=lambda *_, **__: Principal("token", Role.WRITE), changes=lambda *_: True
)


async def answer_of(handler: Handler) -> ApiAnswer:
    """Return the answer of a gate with one handler."""
    request = ApiRequest(url=b"/", method=b"PUT", version="1.1", hosts=[b"localhost"])
    gate = Gate(SimpleNamespace(find=lambda _: handler), LET_IN, ManualClock(), body_bytes_max=1)
    gate.check_head(request, from_here=True)
    return await gate.answer(request)


@pytest.mark.parametrize("refused", [False, True])
async def test_only_what_was_not_refused_is_logged_as_a_change(*, refused: bool) -> None:
    """A request with a fault has changed nothing."""

    async def handle(_request: ApiRequest) -> ApiAnswer:
        if refused:
            raise ProblemError(HTTPStatus.CONFLICT, "conflict", "")
        return ApiAnswer(b"")

    with capture_logs() as lines:
        answer = await answer_of(handle)
    assert answer.status == (HTTPStatus.CONFLICT if refused else HTTPStatus.OK)
    assert [line["event"] for line in lines] == [] if refused else ["web.change_made"]


async def test_a_handler_that_fails_is_logged_and_answered() -> None:
    """The client learns that it is a fault of the hub, and nothing of what it is."""

    async def fails(_request: ApiRequest) -> ApiAnswer:
        msg = "secret"
        raise ValueError(msg)

    with capture_logs() as lines:
        answer = await answer_of(fails)
    assert answer.status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert b"secret" not in answer.body
    assert [line["event"] for line in lines] == ["web.request_failed"]
