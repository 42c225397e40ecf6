"""Credentials of the HTTP head."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from edgehub.heads.http.sign_in import parse_basic
from edgehub.http1.refusal import RequestError

if TYPE_CHECKING:
    from edgehub.devices.identities import Identities


class Known:
    """A set of ids that looks like the identities."""

    def __init__(self, *ids: str) -> None:
        self.ids = set(ids)

    def get(self, identity_id: str) -> object:
        """See `Identities`."""
        return identity_id if identity_id in self.ids else None


def parsed(text: str, *known: str, sender: str = "press-1") -> tuple[str, bytes]:
    """Take credentials apart."""
    identities: Identities = Known(*known)  # type: ignore[assignment]
    return parse_basic(b"Basic " + base64.b64encode(text.encode()), sender, identities)


@pytest.mark.parametrize(
    ("text", "known", "sender", "expected"),
    [
        ("press-1:secret", ("press-1",), "press-1", ("press-1", b"secret")),
        ("press-1:se:cr:et", ("press-1",), "press-1", ("press-1", b"se:cr:et")),
        ("hall-2:s", ("hall-2",), "press-1", ("hall-2", b"s")),
        ("urn:dev:1:s:x", ("urn:dev:1",), "press-1", ("urn:dev:1", b"s:x")),
        ("urn:dev:1:s", ("urn",), "urn:dev:1", ("urn:dev:1", b"s")),
        ("gw/cam:s", ("gw/cam",), "gw/cam", ("gw/cam", b"s")),
        ("who:s:t", (), "press-1", ("who", b"s:t")),
        ("who", (), "press-1", ("who", b"")),
        ("a" + ":" * 9000, (), "press-1", ("a", b":" * 8999)),
    ],
)
def test_id_and_password(
    text: str, known: tuple[str, ...], sender: str, expected: tuple[str, bytes]
) -> None:
    """The sender's own id first, then a known one, then up to the first colon."""
    assert parsed(text, *known, sender=sender) == expected


@pytest.mark.parametrize(
    "header", [b"Bearer abc", b"SharedAccessSignature sr=x", b"Basic ###", b""]
)
def test_other_ways_to_sign_in(header: bytes) -> None:
    """401 with the challenge, so that clients know the way."""
    identities: Identities = Known()  # type: ignore[assignment]
    with pytest.raises(RequestError) as caught:
        parse_basic(header, "press-1", identities)
    assert caught.value.status == 401
    assert caught.value.headers[0][0] == "WWW-Authenticate"
