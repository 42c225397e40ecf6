"""Revisions as HTTP has them: entity tags, and requests that depend on them.

Pure. Source: RFC 9110 sections 8.8.3 (ETag) and 13.1.1 (If-Match).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from edgehub.web.problem import ProblemError

_TAG = re.compile(r'\s*(?:(W/)?"([\x21\x23-\x7e\x80-\xff]*)")\s*')
_REVISION = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `If-Match` asks for.

    Attributes:
        anything: `*`: whatever there is, but something.
        revisions: Any of these; tags that no revision has are left out.
    """

    anything: bool
    revisions: frozenset[int]


def entity_tag(revision: int) -> str:
    """Return the tag of a revision."""
    return f'"{revision}"'


def parse_if_match(header: str | None) -> Wanted | None:
    """Read the header, None = the request does not depend on a revision.

    Raises:
        ProblemError: 400 if it is malformed.
    """
    if header is None:
        return None
    if header.strip() == "*":
        return Wanted(anything=True, revisions=frozenset())
    revisions: set[int] = set()
    at = 0
    while True:
        found = _TAG.match(header, at)
        if found is None:
            raise _malformed("If-Match", 'a tag such as "17" with its quotes, or *')
        weak, tag = found.groups()
        # A weak tag is never the same as one that must match exactly.
        if weak is None and _REVISION.fullmatch(tag):
            revisions.add(int(tag))
        at = found.end()
        if at == len(header):
            return Wanted(anything=False, revisions=frozenset(revisions))
        if header[at] != ",":
            raise _malformed("If-Match", 'a tag such as "17" with its quotes, or *')
        at += 1


def parse_if_none_match(header: str | None) -> bool:
    """Return whether a request to write is for something new only.

    Raises:
        ProblemError: 400 if it is anything but `*`, which alone makes sense for one.
    """
    if header is None:
        return False
    if header.strip() != "*":
        raise _malformed("If-None-Match", "* (only if there is none yet)")
    return True


def _malformed(name: str, wanted: str) -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST, "bad_header", f"{name} is malformed", hint=f"it takes {wanted}"
    )
