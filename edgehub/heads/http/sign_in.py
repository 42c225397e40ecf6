"""Sign-in of HTTP requests: Basic, a signature, a client certificate, or anonymous on loopback.

Owns the rules. Invariant: an id of the identities file is never accepted without its password, a
signature made with its key or its certificate, and no client sends for another one outside
`on_behalf`.

Source: RFC 7617.
"""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.devices.local_origin import Foreign, foreign
from edgehub.devices.password_checks import TooManyChecksError
from edgehub.heads.http.problem import BUSY_RETRY_S, shown
from edgehub.http1.refusal import RequestError
from edgehub.mqtt.shared_access import SCHEME, SharedAccessSignature

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection

    from edgehub.devices.identities import Identities
    from edgehub.devices.identity_file import Identity
    from edgehub.devices.server_tls import ClientCertificate
    from edgehub.heads.http.request import MessageRequest

# Two ids of 128 characters and the slash between them.
_SENDER_BYTES_MAX: Final = 257
_RETRY_AFTER: Final = (("Retry-After", str(BUSY_RETRY_S)),)
_SIGNATURE: Final = SCHEME.lower().encode()
_CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="edgehub", charset="UTF-8"'),)


class VerifiedClient(Struct, frozen=True):
    """A client whose password, signature or certificate was verified.

    Attributes:
        authorization: The header that was verified; the same one needs no further check. Empty for
            a certificate, which is checked with each request.
        scope: Others for which it may send, None = none.
        expires_s: When its signature ends, in seconds since 1970, None = it has none.
    """

    authorization: bytes
    identity: Identity
    scope: re.Pattern[str] | None
    expires_s: int | None = None

    def is_in_force(self, authorization: bytes, identities: Identities) -> bool:
        """Return whether a later request on the same connection needs no new check."""
        identity = self.identity
        return (
            authorization == self.authorization
            and identities.get(identity.id) == identity
            and not identity.disabled
            and not (self.expires_s is not None and identities.has_expired(self.expires_s))
        )

    def may_speak_for(self, sender: str) -> bool:
        """Return whether the client may send for `sender`."""
        if sender == self.identity.id:
            return True
        return self.scope is not None and self.scope.match(sender) is not None

    def check_sender(self, sender: str) -> None:
        """Check that the client may send for `sender`.

        Raises:
            RequestError: 403 if it may not.
        """
        if not self.may_speak_for(sender):
            raise RequestError(
                HTTPStatus.FORBIDDEN,
                f"{shown(self.identity.id)} may not send for {shown(sender)};"
                " its identity has no such on_behalf pattern",
            )


def certified(
    certificate: ClientCertificate, sender: str, identities: Identities
) -> VerifiedClient | None:
    """Return the client that a certificate stands for, None = it is of no enabled identity.

    One of its own names no identity, so that of the sender is tried as well.
    """
    for name in (sender, certificate.common_name or ""):
        identity = identities.get(name)
        if identity is not None and not identity.disabled and identity.is_shown_by(certificate):
            return VerifiedClient(b"", identity, identity.scope())
    return None


def check_anonymous(
    request: MessageRequest,
    sender: str,
    identities: Identities,
    *,
    anonymous: bool,
    host_names: Collection[str],
) -> None:
    """Check that a sender may send without a password.

    Raises:
        RequestError: 401 if it may not, 403 or 421 if the request is of a page of another site.
    """
    if not anonymous or identities.get(sender) is not None:
        raise unauthorized("a password, a signature or a certificate is needed")
    if not request.hosts:
        # Clients of HTTP/1.0 may leave out the host, and browsers never do.
        return
    why = foreign(
        request.hosts[0].decode("latin-1").strip(), request.origin, request.fetch_site, host_names
    )
    if why is Foreign.HOST:
        raise RequestError(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"{why}; use localhost or 127.0.0.1, or name it in http.host_names",
        )
    if why is Foreign.ORIGIN:
        raise RequestError(HTTPStatus.FORBIDDEN, why.value)


async def sign_in(
    authorization: bytes,
    sender: str,
    identities: Identities,
    *,
    address: str,
    waits: Callable[[], None],
) -> VerifiedClient:
    """Check the password or the signature of a request.

    Args:
        authorization: Value of the header.
        sender: Whom the path of the request names.
        identities: Clients that may sign in.
        address: Where the client is.
        waits: Called if the password cannot be checked at once.

    Raises:
        RequestError: 401 if it is wrong, 429 if too many of the address wait.
    """
    if is_signature(authorization):
        return _signed(authorization, identities)
    identity_id, password = parse_basic(authorization, sender, identities)
    try:
        identity = await identities.verify(identity_id, password, address=address, waits=waits)
    except TooManyChecksError as error:
        raise RequestError(HTTPStatus.TOO_MANY_REQUESTS, str(error), headers=_RETRY_AFTER) from None
    if identity is None:
        raise unauthorized("unknown identity or wrong password")
    return VerifiedClient(authorization, identity, identity.scope())


def may_be_right(authorization: bytes, sender: str, identities: Identities) -> bool:
    """Return whether a header may be that of an identity, as far as known without a hash."""
    try:
        if is_signature(authorization):
            return _signed(authorization, identities) is not None
        return identities.may_be_right(*parse_basic(authorization, sender, identities))
    except RequestError:
        return False


def is_signature(authorization: bytes) -> bool:
    """Return whether a header is a shared access signature."""
    return authorization.partition(b" ")[0].lower() == _SIGNATURE


def _signed(authorization: bytes, identities: Identities) -> VerifiedClient:
    try:
        signature = SharedAccessSignature.parse(authorization.decode("utf-8", "replace"))
    except ValueError as error:
        raise unauthorized(f"shared access signature: {error}") from None
    identity = identities.verify_signature(signature)
    if identity is None:
        raise unauthorized("shared access signature of no identity or another key, or expired")
    return VerifiedClient(authorization, identity, identity.scope(), signature.expires_s)


def parse_basic(authorization: bytes, sender: str, identities: Identities) -> tuple[str, bytes]:
    """Parse id and password from the header.

    Ids may have colons, which Basic does not allow: the id is the sender's, or else the shortest
    known one that the credentials begin with.

    Raises:
        RequestError: 401 if it is not Basic.
    """
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        raise unauthorized(
            f"{shown(scheme.decode('latin-1'))} is not supported; use Basic with the identity's"
            " id and password, or a shared access signature"
        )
    try:
        text = base64.b64decode(encoded.strip(), validate=True)
    except ValueError:
        raise unauthorized("Basic credentials are base64 of <id>:<password>") from None
    wanted = sender.encode() + b":"
    if text.startswith(wanted):
        return sender, text[len(wanted) :]
    shortest = text.partition(b":")
    identity_id, _, password = shortest
    while password and len(identity_id) <= _SENDER_BYTES_MAX:
        known = identity_id.decode("utf-8", "replace")
        if identities.get(known) is not None:
            return known, password
        more, colon, password = password.partition(b":")
        identity_id += b":" + more
        if not colon:
            break
    return shortest[0].decode("utf-8", "replace"), shortest[2]


def unauthorized(detail: str) -> RequestError:
    """Build a 401 with the challenge of Basic."""
    return RequestError(HTTPStatus.UNAUTHORIZED, detail, headers=_CHALLENGE)
