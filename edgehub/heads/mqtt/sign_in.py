"""Sign-in: from a CONNECT to a signed-in client, or to the code of the refusal.

Owns the rules of client id, user name and rights. Invariant: a client's id is that of its identity,
so that no client takes over the session of another one; an id of the identities file is never given
to a client without its password, a signature made with its key, or a certificate in its name.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from msgspec import Struct

from edgehub.devices.ids import split_sender
from edgehub.devices.password_checks import TooManyChecksError
from edgehub.errors import EdgeHubError
from edgehub.mqtt.packets import LEVEL_5, ConnectCode
from edgehub.mqtt.reasons import ReasonCode
from edgehub.mqtt.shared_access import SCHEME, SharedAccessSignature

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from edgehub.devices.identities import Identities
    from edgehub.devices.identity_file import Identity
    from edgehub.devices.server_tls import ClientCertificate
    from edgehub.mqtt.packets import Connect

_SIGNATURE: Final = f"{SCHEME} ".encode()
_NEEDED: Final = "credentials are needed"
_DIALECT_LEVELS: Final = (2, 3)

_REASON_CODES: Final = {
    ConnectCode.PROTOCOL_LEVEL: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectCode.IDENTIFIER: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ConnectCode.UNAVAILABLE: ReasonCode.QUOTA_EXCEEDED,
    ConnectCode.CREDENTIALS: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ConnectCode.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
}


class SignInError(EdgeHubError):
    """A sign-in is refused.

    Attributes:
        code: Return code of MQTT 3.1.1.
        reason: For the log, and the reason string of MQTT 5.
        reason_code: Reason code of MQTT 5.
    """

    def __init__(
        self, code: ConnectCode, reason: str, reason_code: ReasonCode | None = None
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.reason_code = reason_code or _REASON_CODES[code]


class UserName(Struct, frozen=True, kw_only=True):
    """A parsed user name.

    Attributes:
        identity_id: `<device>` or `<device>/<module>`.
        model_id: Device model that the client announces, None = none.
    """

    identity_id: str
    model_id: str | None = None


class SignedInClient(Struct, frozen=True, kw_only=True):
    """A signed-in client.

    Attributes:
        id: Client id and sender of its messages.
        identity: Its identity, None = anonymous.
        scope: Others for which it may send, None = none.
        model_id: Device model of its user name, None = none.
        expires_s: When its shared access signature ends, in seconds since 1970, None = it has none.
    """

    id: str
    identity: Identity | None
    scope: re.Pattern[str] | None
    model_id: str | None
    expires_s: int | None = None

    def may_speak_for(self, sender: str) -> bool:
        """Return whether the client may send messages of `sender`."""
        if sender == self.id:
            return True
        return self.scope is not None and self.scope.match(sender) is not None


def parse_user_name(text: str) -> UserName | None:
    """Read `<host>/<device>[/<module>]/?api-version=...` or a plain identity id; None = neither."""
    levels = text.split("/")
    last = levels[-1]
    if not last.startswith("?") and "api-version=" not in last:
        return UserName(identity_id=text)
    named = levels[1:-1]
    properties: dict[str, str] = {}
    for item in last.removeprefix("?").split("&"):
        name, _, value = item.partition("=")
        properties.setdefault(name, unquote(value))
    if len(levels[:-1]) not in _DIALECT_LEVELS or not all(levels[:-1]):
        return None
    if not properties.get("api-version", "").strip():
        return None
    return UserName(identity_id="/".join(named), model_id=properties.get("model-id") or None)


async def sign_in(
    connect: Connect,
    identities: Identities,
    *,
    anonymous: bool,
    hub_id: str,
    address: str,
    certificate: ClientCertificate | None = None,
    waits: Callable[[], None] = lambda: None,
) -> SignedInClient:
    """Check a CONNECT.

    Args:
        connect: What the client sent.
        identities: Clients that may sign in with a password, a signature or a certificate.
        anonymous: Whether clients without a password may sign in.
        hub_id: The hub's own id, which no anonymous client may have.
        address: Of the client.
        certificate: What the client has shown, None = nothing.
        waits: Called if its password cannot be checked at once.

    Raises:
        SignInError: If it is refused.
    """
    if connect.properties is not None and connect.properties.authentication_method is not None:
        code = ReasonCode.BAD_AUTHENTICATION_METHOD
        raise SignInError(ConnectCode.NOT_AUTHORIZED, "extended authentication", code)
    user = _user(connect)
    client_id = _client_id(connect, user, certificate)
    expires_s = None
    if connect.password is None:
        identity = identities.get(client_id)
        if identity is not None:
            _check_certificate(identity, certificate)
        elif not anonymous:
            raise SignInError(
                ConnectCode.NOT_AUTHORIZED,
                _NEEDED if certificate is None else "certificate of no identity",
            )
        elif client_id == hub_id and len(identities):
            raise SignInError(ConnectCode.NOT_AUTHORIZED, "the hub's own id needs an identity")
    elif connect.password.startswith(_SIGNATURE):
        identity, expires_s = _signed(connect.password, client_id, identities)
    else:
        try:
            identity = await identities.verify(
                client_id, connect.password, address=address, waits=waits
            )
        except TooManyChecksError as error:
            code = ReasonCode.SERVER_BUSY
            raise SignInError(ConnectCode.UNAVAILABLE, str(error), code) from None
        if identity is None:
            raise SignInError(ConnectCode.CREDENTIALS, "unknown identity or wrong password")
    return SignedInClient(
        id=client_id,
        identity=identity,
        scope=None if identity is None else identity.scope(),
        model_id=None if user is None else user.model_id,
        expires_s=expires_s,
    )


def _check_certificate(identity: Identity, certificate: ClientCertificate | None) -> None:
    if certificate is None:
        raise SignInError(ConnectCode.NOT_AUTHORIZED, _NEEDED)
    if not identity.is_shown_by(certificate):
        raise SignInError(ConnectCode.NOT_AUTHORIZED, "certificate of another")
    if identity.disabled:
        raise SignInError(ConnectCode.NOT_AUTHORIZED, "the identity is disabled")


def _signed(password: bytes, client_id: str, identities: Identities) -> tuple[Identity, int]:
    """Return the identity of a shared access signature, and when it ends."""
    try:
        signature = SharedAccessSignature.parse(password.decode("utf-8", "replace"))
    except ValueError as error:
        raise SignInError(ConnectCode.CREDENTIALS, f"shared access signature: {error}") from None
    identity = None
    if signature.identity_id == client_id:
        identity = identities.verify_signature(signature)
    if identity is None:
        raise SignInError(
            ConnectCode.CREDENTIALS,
            "shared access signature of another identity or key, or expired",
        )
    return identity, signature.expires_s


def _user(connect: Connect) -> UserName | None:
    # An empty user name without a password is what some clients send for "none".
    if connect.user_name is None or (not connect.user_name and connect.password is None):
        return None
    user = parse_user_name(connect.user_name)
    if user is None:
        raise SignInError(ConnectCode.CREDENTIALS, "user name is not <host>/<id>/?api-version=..")
    return user


def _client_id(
    connect: Connect, user: UserName | None, certificate: ClientCertificate | None
) -> str:
    client_id = connect.client_id
    if not client_id:
        if not connect.clean_session and connect.level < LEVEL_5:
            raise SignInError(ConnectCode.IDENTIFIER, "empty client id with a stored session")
        if user is not None:
            client_id = user.identity_id
        else:
            certified = None if certificate is None else certificate.common_name
            client_id = certified or f"auto-{secrets.token_hex(8)}"
    if split_sender(client_id) is None:
        raise SignInError(ConnectCode.IDENTIFIER, "client id is not <device> or <device>/<module>")
    if user is not None and user.identity_id != client_id:
        raise SignInError(ConnectCode.IDENTIFIER, "client id differs from the user name's id")
    return client_id
