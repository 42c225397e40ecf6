"""The identities file: one JSON object per line, read whole or not at all, replaced atomically.

Owns the format. Blocks on the disk: the daemon calls it from a thread, the
command line directly. Invariant: a reader sees the file before or after a change, never in between.
"""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from edgehub.devices.entry_file import EntryFormat
from edgehub.devices.ids import ID_RULE, split_sender
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import ConfigurationError
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.mqtt.topic_filter import filter_fault
from edgehub.routes.tenant import tenant_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.devices.server_tls import ClientCertificate

T = TypeVar("T")

KEYS_MAX: Final = 2
"""Keys, thumbprints or certificates of an identity: the one in use and the one that follows."""
UID_MAX: Final = 2**32 - 2
_THUMBPRINT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
OWN_ID: Final = "{id}"
"""Stands in a right for the id of who has it."""

_BRACES: Final = re.compile(r"\{[^{}/]*\}")
_PATTERN_CHARACTERS_MAX: Final = 256


class IdentityFileError(ConfigurationError):
    """The identities file is unusable."""


class Identity(Struct, frozen=True, kw_only=True):
    """One entry: who signs in how, and for whom else it may speak.

    Attributes:
        id: `<device>` or `<device>/<module>`.
        password: Its hash, None = it has none, and signs in with a certificate or a key.
        keys: Symmetric keys with which its shared access signatures may be made.
        thumbprints: SHA-1 or SHA-256 of the only certificates that it may show; empty = any of an
            authority with its name.
        certificates: Files of certificates that it may show, by no authority, relative to the
            folder of the identities file.
        uid: User whose processes are this module at the workload API, None = it has a socket.
        certificate_thumbprints: SHA-256 of what these files hold; known once they are read.
        on_behalf: Patterns with `*`, `?` and `[]` on ids; `*` also spans the slash.
        publish: Filters of local topics that it may publish to, with `{id}` for its own id; None =
            all of them.
        subscribe: Filters of local topics that it may subscribe to, likewise.
        tenant: `organisation/application` whose routes its messages meet; empty = the default.
    """

    id: str
    password: PasswordHash | None = None
    keys: tuple[SharedAccessKey, ...] = ()
    thumbprints: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    uid: int | None = None
    certificate_thumbprints: frozenset[str] = frozenset()
    on_behalf: tuple[str, ...] = ()
    disabled: bool = False
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    tenant: str = ""

    def is_shown_by(self, certificate: ClientCertificate) -> bool:
        """Return whether a trusted certificate is one of this identity.

        One that stands for itself must be the very file. One of an authority must have the name.
        """
        if self.certificates:
            return bool(self.certificate_thumbprints & certificate.thumbprints)
        if not certificate.is_of_authority or certificate.common_name != self.id:
            return False
        return not self.thumbprints or not certificate.thumbprints.isdisjoint(self.thumbprints)

    def scope(self) -> re.Pattern[str] | None:
        """Compile the patterns, None = it speaks for itself alone."""
        if not self.on_behalf:
            return None
        return re.compile("|".join(translate(pattern) for pattern in self.on_behalf))


def check_right(topic_filter: object) -> str:
    """Return a filter of local topics, with `{id}` for the identity's own id.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(topic_filter, str):
        raise ValueError(f"{topic_filter!r} is not a topic filter")  # noqa: TRY004 - what callers collect
    fault = filter_fault(topic_filter.replace(OWN_ID, "id"))
    unknown = _BRACES.search(topic_filter.replace(OWN_ID, ""))
    if unknown is not None:
        fault = f"`{unknown[0]}` stands for nothing; {OWN_ID} is the identity's own id"
    if fault:
        raise ValueError(f"{topic_filter!r}: {fault}")
    return topic_filter


def parse_thumbprint(text: object) -> str:
    """Return the thumbprint of a certificate in small letters, without colons.

    Raises:
        ValueError: If it is none.
    """
    digits = text.replace(":", "").lower() if isinstance(text, str) else ""
    if _THUMBPRINT.fullmatch(digits) is None:
        raise ValueError(f"{text!r} is no SHA-1 or SHA-256 in hexadecimal digits")
    return digits


def check_pattern(pattern: object) -> str:
    """Return a pattern on ids.

    Raises:
        ValueError: If it is no text of 1 to 256 characters.
    """
    if not isinstance(pattern, str) or not 0 < len(pattern) <= _PATTERN_CHARACTERS_MAX:
        raise ValueError(
            f"pattern {pattern!r} is not a text of 1 to {_PATTERN_CHARACTERS_MAX} characters"
        )
    return pattern


def _line(identity: Identity) -> dict[str, Any]:
    entry = asdict(identity)
    del entry["certificate_thumbprints"]
    entry["keys"] = tuple(key.to_text() for key in identity.keys)
    entry["password"] = identity.password and str(identity.password)
    return {name: value for name, value in entry.items() if value != _UNSET.get(name)}


_UNSET: Final = asdict(Identity(id=""))


def _identity(**members: Any) -> Identity:
    if members.get("thumbprints") and members.get("certificates"):
        raise ValueError("thumbprints and certificates: a file needs no thumbprint")
    return Identity(**members)


def _id(value: Any) -> str:
    if not isinstance(value, str) or split_sender(value) is None:
        raise ValueError(f"{value!r} is not <device> or <device>/<module>")
    return value


def _password(value: Any) -> PasswordHash | None:
    return None if value is None else PasswordHash.parse(_text(value))


def _certificate(value: Any) -> str:
    if not _text(value):
        raise ValueError(f"{value!r} is no file")
    return str(value)


def _uid(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value <= UID_MAX):
        raise ValueError(f"{value!r} is not the number of a user")
    return value


def _disabled(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004 - what callers collect
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list_of(
    what: str, read: Callable[[Any], T], most: int | None = None
) -> Callable[[Any], tuple[T, ...]]:
    """Return what reads a list, and names all of its values that are wrong."""

    def read_list(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            raise ValueError(f"not a list of {what if most is None else f'up to {most} {what}'}")
        found: list[T] = []
        faults: list[str] = []
        for each in value:
            try:
                found.append(read(each))
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError("; ".join(faults))
        return tuple(found)

    return read_list


_rights: Final = _list_of("topic filters", check_right)

FORMAT: Final = EntryFormat(
    error=IdentityFileError,
    command="edgehub identity add ID",
    name=lambda identity: identity.id,
    members={
        "id": _id,
        "password": _password,
        "keys": _list_of("keys in base64", lambda key: SharedAccessKey.parse(_text(key)), KEYS_MAX),
        "thumbprints": _list_of("thumbprints", parse_thumbprint, KEYS_MAX),
        "certificates": _list_of("files", _certificate, KEYS_MAX),
        "uid": _uid,
        "on_behalf": _list_of("patterns", check_pattern),
        "publish": _rights,
        "subscribe": _rights,
        "disabled": _disabled,
        "tenant": lambda tenant: tenant if tenant == "" else tenant_name(_text(tenant)),
    },
    needed=frozenset({"id"}),
    make=_identity,
    hints={
        "id": f"each: {ID_RULE}",
        "password": "set a new one with `edgehub identity passwd`",
        "keys": "`openssl rand -base64 32` makes one",
        "publish": "[] = none, absent = all",
        "subscribe": "[] = none, absent = all",
    },
    line=_line,
)
"""Of the identities file."""

read_identities: Final = FORMAT.read
changing: Final = FORMAT.changing
