"""Revisions as HTTP has them: entity tags, and requests that depend on them.

Pure. Source: RFC 9110 sections 8.8.3 (ETag), 13.1.1 (If-Match) and 13.1.2 (If-None-Match).
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from edgehub.operations.problem import ProblemError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TAG = re.compile(r'\s*(?:(W/)?"([\x21\x23-\x7e\x80-\xff]*)")\s*')
_REVISION = re.compile(r"[0-9]{1,18}")


def entity_tag(revision: int) -> str:
    """Return the tag of a revision."""
    return f'"{revision}"'


def conditions(headers: Mapping[str, str], names: Collection[str]) -> dict[str, Any]:
    """Return the arguments that the headers of a request stand for.

    Args:
        headers: Of the request.
        names: Arguments of the operation; a condition that it does not know is refused.

    Raises:
        ProblemError: 400 if a header is malformed or out of place.
    """
    found: dict[str, Any] = {}
    if (header := headers.get("if-match")) is not None:
        _require("If-Match", names, "if_match")
        revisions = parse_if_match(header)
        found |= {"if_exists": True} if revisions is None else {"if_match": revisions}
    if (header := headers.get("if-none-match")) is not None:
        _require("If-None-Match", names, "if_absent")
        if header.strip() != "*":
            raise _malformed("If-None-Match", "* (only if there is none yet)")
        found["if_absent"] = True
    if len(found) > 1:
        raise ProblemError(
            HTTPStatus.BAD_REQUEST,
            "bad_header",
            "If-Match and If-None-Match contradict each other",
            hint="send one of them",
        )
    return found


def parse_if_match(header: str) -> list[int] | None:
    """Return the revisions that a header names, None = any (`*`); tags of no revision are left out.

    Raises:
        ProblemError: 400 if it is malformed.
    """
    if header.strip() == "*":
        return None
    revisions: set[int] = set()
    at = 0
    while True:
        found = _TAG.match(header, at)
        if found is None:
            raise _malformed("If-Match", 'a tag such as "17" with its quotes, or *')
        weak, tag = found.groups()
        # A weak tag never equals one that must match exactly; 0 is the revision of no stored route.
        if weak is None and _REVISION.fullmatch(tag) and int(tag):
            revisions.add(int(tag))
        at = found.end()
        if at == len(header):
            return sorted(revisions)
        if header[at] != ",":
            raise _malformed("If-Match", 'a tag such as "17" with its quotes, or *')
        at += 1


def _require(header: str, names: Collection[str], argument: str) -> None:
    if argument not in names:
        raise ProblemError(
            HTTPStatus.BAD_REQUEST,
            "bad_header",
            f"{header} does not go with this request",
            hint="of routes, it goes with PUT of the route's own path",
        )


def _malformed(name: str, expected: str) -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST, "bad_header", f"{name} is malformed", hint=f"it takes {expected}"
    )
