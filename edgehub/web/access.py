"""Who sends a request, and what it may do.

Owns the rules; asks the tokens in force. Invariants: whatever changes something needs a token with
the role `write`; without a tokens file only this machine reads, and no page of another origin reads
through a browser on this machine, be it by a name that it lets point here.

Source: RFC 6750 (bearer tokens).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.devices.local_origin import Foreign, foreign
from edgehub.devices.token_file import Role
from edgehub.operations.problem import ProblemError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from edgehub.devices.tokens import Tokens

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz"})
"""Paths for everybody who reaches the port: the page without its figures, and the probes."""

TENANT_PATHS: Final = ("/api/v1/routes",)
"""Where tokens of a tenant may go: these paths and what lies below them."""

_CHALLENGE: Final = 'Bearer realm="edgehub"'


class Principal(Struct, frozen=True):
    """Who asks.

    Attributes:
        name: Of the token; empty = a client on this machine without one.
        role: What they may do.
        tenant: `org/application` to whose routes they are confined, None = they see the whole hub.
    """

    name: str
    role: Role
    tenant: str | None = None


ANONYMOUS: Final = Principal("", Role.READ)


class Access:
    """The rules of access.

    Args:
        tokens: Those in force.
        host_names: Further names than loopback ones under which requests without a token may come.
        reading: Further methods and paths that change nothing.
    """

    __slots__ = ("_host_names", "_reading", "_tokens")

    def __init__(
        self,
        tokens: Tokens,
        host_names: Collection[str] = (),
        reading: Collection[tuple[str, str]] = (),
    ) -> None:
        self._tokens = tokens
        self._host_names = frozenset(host_names)
        self._reading = frozenset(reading)

    def changes(self, method: str, path: str) -> bool:
        """Return whether a request may change something."""
        return method not in READING and (method, path) not in self._reading

    def check(
        self, method: str, path: str, headers: Mapping[str, str], *, from_here: bool
    ) -> Principal:
        """Return who asks.

        Args:
            method: Of the request.
            path: Of its target.
            headers: By name in small letters.
            from_here: The request came in over loopback.

        Raises:
            ProblemError: 401 without a token that is in force where one is needed, 403 where the
                request may not do this, 421 where it came by a name that is not this machine's.
        """
        authorization = headers.get("authorization")
        if authorization is not None:
            principal = self._holder(authorization)
        elif path in OPEN_PATHS and method in READING:
            return ANONYMOUS
        elif self._tokens.are_required or not from_here:
            # A reload may have removed the tokens file of a hub that listens on the network.
            raise _unauthorized("a token is needed", 'send "Authorization: Bearer <token>"')
        else:
            principal = self._local(headers)
        if self.changes(method, path) and principal.role is not Role.WRITE:
            who = f"the token {principal.name!r}" if principal.name else "without a token one"
            raise read_only(f"{who} may read only")
        if principal.tenant is not None and not _is_below(path, TENANT_PATHS):
            raise ProblemError(
                HTTPStatus.FORBIDDEN,
                "other_tenant",
                f"the token {principal.name!r} is for the routes of {principal.tenant} only",
            )
        return principal

    def _holder(self, authorization: str) -> Principal:
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized(
                "this way to sign in is not known here", 'send "Authorization: Bearer <token>"'
            )
        token = self._tokens.find(text.strip())
        if token is None:
            raise _unauthorized(
                "the token is not known", "edgehub token list shows the names; reload after add"
            )
        return Principal(token.name, token.role, token.tenant)

    def _local(self, headers: Mapping[str, str]) -> Principal:
        why = foreign(
            headers.get("host", ""),
            headers.get("origin"),
            headers.get("sec-fetch-site", ""),
            self._host_names,
        )
        if why is Foreign.HOST:
            raise ProblemError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "unknown_host",
                why.value,
                hint="use localhost or 127.0.0.1, or name it in web.host_names",
            )
        if why is Foreign.ORIGIN:
            raise ProblemError(HTTPStatus.FORBIDDEN, "foreign_origin", why.value)
        return ANONYMOUS


def read_only(detail: str) -> ProblemError:
    """Return the refusal of what needs the role `write`."""
    return ProblemError(
        HTTPStatus.FORBIDDEN,
        "read_only",
        detail,
        hint="use a token with the role write: edgehub token add NAME --role write",
    )


def _is_below(path: str, roots: Collection[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _unauthorized(detail: str, hint: str) -> ProblemError:
    return ProblemError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        detail,
        hint=hint,
        headers={"WWW-Authenticate": _CHALLENGE},
    )
