"""Refusals as a client sees them: one form for every error, problem details in JSON.

Owns the form. Invariant: every answer of 400 and above has it, whoever refused: the connection, the
gate, the framework or a handler.

Source: RFC 9457 (problem details), RFC 9110 section 15 (status codes).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from edgehub.errors import EdgeHubError
from edgehub.web.answers import encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI
    from starlette.requests import Request

MEDIA_TYPE: Final = "application/problem+json"


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="Dotted path of the value; empty = the whole.")
    message: str = Field(description="What is wrong.")
    hint: str = Field(default="", description="How to mend it.")
    route: str | None = Field(default=None, description="Name or id of the route it lies in.")
    line: int | None = Field(default=None, description="Line in the text, 1-based.")
    column: int | None = Field(default=None, description="Column in that line, 1-based.")


class ProblemDocument(BaseModel):
    """Why a request was refused (RFC 9457)."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="`about:blank`: the status code says what kind it is.")
    title: str = Field(description="The status code in words.")
    status: int = Field(description="The status code.")
    code: str = Field(description="What happened, in one word that does not change.")
    detail: str = Field(description="What happened, for people.")
    hint: str = Field(default="", description="How to mend it.")
    faults: list[Fault] = Field(default_factory=list, description="Every single fault.")


class ProblemError(EdgeHubError):
    """A request is refused.

    Args:
        status: Status code.
        code: What happened, in one word of `a-z_` that programs may rely on.
        detail: What happened, for people.
        hint: How to mend it.
        faults: Single faults, where the request is wrong in more than one place.
        headers: Further response headers.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        hint: str = "",
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.faults = tuple(faults)
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the document as it is sent."""
        document = ProblemDocument(
            type="about:blank",
            title=self.status.phrase,
            status=self.status.value,
            code=self.code,
            detail=self.detail,
            hint=self.hint,
            faults=list(self.faults),
        )
        return encoded(document.model_dump(exclude_defaults=True))

    def response(self) -> Response:
        """Return the answer."""
        return Response(self.body(), self.status.value, self.headers, MEDIA_TYPE)


def problem_answers(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """Describe answers with a problem for the API's document, beside those of every request."""
    return {
        status.value: {
            "description": status.phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def answer_problems(app: FastAPI) -> None:
    """Return every error of framework and handlers the one form."""

    @app.exception_handler(ProblemError)
    async def _problem(_request: Request, error: ProblemError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        code = status.name.lower()
        return ProblemError(
            status, code, _DETAILS.get(status, ""), headers=error.headers
        ).response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> Response:
        return ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_request",
            "parameters of the request are wrong",
            faults=[
                Fault(path=".".join(map(str, fault["loc"])), message=fault["msg"])
                for fault in error.errors()
            ],
        ).response()


_DETAILS: Final = {
    HTTPStatus.NOT_FOUND: "nothing has this path; /openapi.json lists what there is",
    HTTPStatus.METHOD_NOT_ALLOWED: "this path has other methods; see the header Allow",
}
