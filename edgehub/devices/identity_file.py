"""The identities file: one JSON object per line, read whole or not at all, replaced atomically.

Owns the format. Blocks on the disk: the daemon calls it from a thread, the
command line directly. Invariant: a reader sees the file before or after a change, never in between.
"""

from __future__ import annotations

import difflib
import re
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.devices.entry_file import EntryFormat, json_object
from edgehub.devices.ids import ID_RULE, split_sender
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import ConfigError, ConfigurationError
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.mqtt.topic_filter import filter_fault
from edgehub.routes.tenant import tenant_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from edgehub.devices.server_tls import ClientCertificate

_KEYS: Final = (
    "id",
    "password",
    "keys",
    "thumbprints",
    "certificates",
    "uid",
    "on_behalf",
    "publish",
    "subscribe",
    "disabled",
    "tenant",
)
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


def read_identities(path: Path) -> dict[str, Identity]:
    """Read the file; the order of the lines is kept.

    Raises:
        IdentityFileError: With every fault, if anything in it is wrong.
    """
    return FORMAT.read(path)


def changing(path: Path) -> AbstractContextManager[dict[str, Identity]]:
    """Return the entries to change in place; see `EntryFormat.changing`.

    Raises:
        IdentityFileError: If the present file is unusable.
    """
    return FORMAT.changing(path)


def _line(identity: Identity) -> dict[str, Any]:
    publish, subscribe = identity.publish, identity.subscribe
    entry = {
        "id": identity.id,
        "password": None if identity.password is None else str(identity.password),
        "keys": [key.to_text() for key in identity.keys] or None,
        "thumbprints": list(identity.thumbprints) or None,
        "certificates": list(identity.certificates) or None,
        "uid": identity.uid,
        "on_behalf": list(identity.on_behalf) or None,
        "publish": None if publish is None else list(publish),
        "subscribe": None if subscribe is None else list(subscribe),
        "disabled": identity.disabled or None,
        "tenant": identity.tenant or None,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _parse(key: str, line: str, faults: list[ConfigError]) -> Identity | None:
    return _Line(key, faults).parse(line)


class _Line:
    """One line while it is read: collects its faults instead of stopping at the first."""

    def __init__(self, key: str, faults: list[ConfigError]) -> None:
        self._key = key
        self._faults = faults

    def parse(self, line: str) -> Identity | None:
        before = len(self._faults)
        try:
            entry = json_object(line)
        except ValueError as error:
            self._fault(str(error))
            return None
        for name in entry.keys() - set(_KEYS):
            near = difflib.get_close_matches(name, _KEYS, n=1)
            self._fault(f"unknown key {name!r}", f"did you mean {near[0]}?" if near else "")
        identity_id = self._id(entry.get("id"))
        password = self._password(entry.get("password"))
        keys = self._shared_access_keys(entry.get("keys", []))
        thumbprints = self._thumbprints(entry.get("thumbprints", []))
        certificates = self._certificates(entry.get("certificates", []))
        uid = entry.get("uid")
        if uid is not None and (type(uid) is not int or not 0 <= uid <= UID_MAX):
            self._fault("uid is not the number of a user")
        if thumbprints and certificates:
            self._fault("thumbprints and certificates", "a file needs no thumbprint")
        on_behalf = self._on_behalf(entry.get("on_behalf", []))
        publish = self._filters(entry, "publish")
        subscribe = self._filters(entry, "subscribe")
        tenant = self._tenant(entry.get("tenant", ""))
        disabled = entry.get("disabled", False)
        if not isinstance(disabled, bool):
            self._fault("disabled is neither true nor false")
        if len(self._faults) == before:
            assert identity_id is not None
            return Identity(
                id=identity_id,
                password=password,
                keys=keys,
                thumbprints=thumbprints,
                certificates=certificates,
                uid=uid,
                on_behalf=on_behalf,
                disabled=disabled,
                publish=publish,
                subscribe=subscribe,
                tenant=tenant,
            )
        return None

    def _tenant(self, value: Any) -> str:
        if value == "":
            return ""
        try:
            return tenant_name(value if isinstance(value, str) else "")
        except ValueError as error:
            self._fault(f"tenant: {error}")
            return ""

    def _id(self, value: Any) -> str | None:
        if isinstance(value, str) and split_sender(value) is not None:
            return value
        self._fault(f"id {value!r} is not <device> or <device>/<module>", f"each: {ID_RULE}")
        return None

    def _password(self, value: Any) -> PasswordHash | None:
        if value is None:
            return None
        try:
            return PasswordHash.parse(value if isinstance(value, str) else "")
        except ValueError as error:
            self._fault(f"password: {error}", "set a new one with `edgehub identity passwd`")
            return None

    def _shared_access_keys(self, value: Any) -> tuple[SharedAccessKey, ...]:
        if not isinstance(value, list) or len(value) > KEYS_MAX:
            self._fault(f"keys is not a list of up to {KEYS_MAX} keys in base64")
            return ()
        try:
            return tuple(
                SharedAccessKey.parse(key if isinstance(key, str) else "") for key in value
            )
        except ValueError as error:
            self._fault(f"keys: {error}", "`openssl rand -base64 32` makes one")
            return ()

    def _thumbprints(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > KEYS_MAX:
            self._fault(f"thumbprints is not a list of up to {KEYS_MAX} thumbprints")
            return ()
        try:
            return tuple(parse_thumbprint(each) for each in value)
        except ValueError as error:
            self._fault(f"thumbprints: {error}")
            return ()

    def _certificates(self, value: Any) -> tuple[str, ...]:
        is_list = isinstance(value, list) and len(value) <= KEYS_MAX
        if not is_list or not all(isinstance(each, str) and each for each in value):
            self._fault(f"certificates is not a list of up to {KEYS_MAX} files")
            return ()
        return tuple(value)

    def _on_behalf(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            self._fault("on_behalf is not a list of patterns")
            return ()
        for pattern in value:
            try:
                check_pattern(pattern)
            except ValueError as error:
                self._fault(f"on_behalf: {error}")
        return tuple(pattern for pattern in value if isinstance(pattern, str))

    def _filters(self, entry: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
        if key not in entry:
            return None
        value = entry[key]
        if not isinstance(value, list):
            self._fault(f"{key} is not a list of topic filters", "[] = none, absent = all")
            return ()
        for topic_filter in value:
            try:
                check_right(topic_filter)
            except ValueError as error:
                self._fault(f"{key}: {error}")
        return tuple(each for each in value if isinstance(each, str))

    def _fault(self, reason: str, hint: str = "") -> None:
        self._faults.append(ConfigError(self._key, reason, hint))


def check_right(topic_filter: object) -> None:
    """Accept a filter of local topics, with `{id}` for the identity's own id.

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


def parse_thumbprint(text: object) -> str:
    """Return the thumbprint of a certificate in small letters, without colons.

    Raises:
        ValueError: If it is none.
    """
    digits = text.replace(":", "").lower() if isinstance(text, str) else ""
    if _THUMBPRINT.fullmatch(digits) is None:
        raise ValueError(f"{text!r} is no SHA-1 or SHA-256 in hexadecimal digits")
    return digits


def check_pattern(pattern: object) -> None:
    """Accept a pattern on ids.

    Raises:
        ValueError: If it is no text of 1 to 256 characters.
    """
    if not isinstance(pattern, str) or not 0 < len(pattern) <= _PATTERN_CHARACTERS_MAX:
        raise ValueError(
            f"pattern {pattern!r} is not a text of 1 to {_PATTERN_CHARACTERS_MAX} characters"
        )


FORMAT: Final = EntryFormat(
    error=IdentityFileError,
    command="edgehub identity add ID",
    name=lambda identity: identity.id,
    parse=_parse,
    line=_line,
)
"""Of the identities file."""
