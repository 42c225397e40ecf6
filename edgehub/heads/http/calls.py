"""Calls of methods over HTTP, as modules of IoT Edge make them with the SDK's `invoke_method`.

Source: the REST interface of Edge Hub, `POST /twins/<device>[/modules/<module>]/methods`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from edgehub.heads.http.problem import shown
from edgehub.http1.refusal import RequestError
from edgehub.methods.methods import MethodCall, MethodError

if TYPE_CHECKING:
    from edgehub.heads.http.sign_in import VerifiedClient
    from edgehub.methods.methods import Methods


def check_caller(client: VerifiedClient | None, called: str) -> None:
    """Check that a client may call methods of a device or module.

    Raises:
        RequestError: 403 if it may not.
    """
    if client is None:
        raise RequestError(HTTPStatus.FORBIDDEN, "methods are called by clients with an identity")
    if not client.may_speak_for(called):
        raise RequestError(
            HTTPStatus.FORBIDDEN,
            f"{shown(client.identity.id)} may not call methods of {shown(called)};"
            " its identity has no such on_behalf pattern",
        )


async def call_method(methods: Methods, called: str, body: bytes) -> bytes:
    """Call a method and return its answer as JSON.

    Args:
        methods: Calls it.
        called: `<device>` or `<device>/<module>`.
        body: Of the request, as `MethodCall.parse` wants it.

    Raises:
        RequestError: There is no answer, with the status that says why.
    """
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"not JSON: {error}") from None
    try:
        status, payload = await methods.call(called, MethodCall.parse(document))
        return orjson.dumps({"status": status, "payload": _json(payload)})
    except MethodError as error:
        raise RequestError(HTTPStatus(error.status), str(error)) from None


def _json(payload: bytes) -> Any:
    if not payload:
        return None
    try:
        return orjson.loads(payload)
    except ValueError:
        raise MethodError(HTTPStatus.BAD_GATEWAY, "answered with what is no JSON") from None
