"""Rules of HTTP/1 for requests that the parser does not check.

Pure. Source: RFC 9112, sections 2.3 (versions), 3.2 (Host), 6.1 (transfer encodings); RFC 3986,
section 3.2.2 (hosts).
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from httptools import HttpRequestParser

OLD: Final = "1.0"
"""The version whose requests need no Host, and whose connections end after the answer."""

_SPOKEN: Final = "1."
"""Minor versions above 1 are served as HTTP/1.1."""

_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~%!$&'()*+,;=-]{0,255})(?::[0-9]{0,5})?"
)


class Fault(NamedTuple):
    """Why a request is refused."""

    status: HTTPStatus
    detail: str


def allow_versions(parser: HttpRequestParser) -> None:
    """Make a parser accept unknown versions, which `find_fault` checks."""
    parser.set_dangerous_leniencies(lenient_version=True)


def find_fault(
    version: str, hosts: Sequence[bytes], transfer_encodings: Sequence[bytes]
) -> Fault | None:
    """Check version, host and transfer encoding of a request.

    Args:
        version: As in `1.1`.
        hosts: Values of its headers Host.
        transfer_encodings: Values of its headers Transfer-Encoding.

    Returns:
        What is wrong, None = nothing.
    """
    if not version.startswith(_SPOKEN):
        return Fault(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
            f"HTTP/{version} is not supported; use HTTP/1.1",
        )
    if transfer_encodings and b",".join(transfer_encodings).strip().lower() != b"chunked":
        return Fault(HTTPStatus.NOT_IMPLEMENTED, "of the transfer encodings only chunked is known")
    if len(hosts) != 1 and (hosts or version != OLD):
        return Fault(HTTPStatus.BAD_REQUEST, "a request has one header Host")
    if hosts and _HOST.fullmatch(hosts[0].strip()) is None:
        return Fault(HTTPStatus.BAD_REQUEST, "the header Host is no <host>[:<port>]")
    return None
