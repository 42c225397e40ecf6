"""What values of settings may be: numbers that are no booleans, texts and paths that are not empty.

Pure; the sections are made of these.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)

from edgehub.storage.credentials import CREDENTIAL

if TYPE_CHECKING:
    from pydantic import ValidatorFunctionWrapHandler


_CERTIFICATE: Final = "certificate_file"
_CREDENTIAL_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


def _no_bool(value: Any) -> Any:
    # TOML has true and false in addition to 1 and 0; a port that is `true` was not meant as port 1.
    if isinstance(value, bool):
        raise ValueError("a number belongs here")  # noqa: TRY004 - pydantic reports ValueError, not TypeError
    return value


def _bytes_or_share(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    # Of a value that may be this or that, pydantic says twice what is wrong, under its own names.
    try:
        return check(value)
    except ValidationError as error:
        raise ValueError(
            'must be a number of bytes, 0 or more, or a share of the volume such as "75%"'
        ) from error


def _not_empty(value: Any) -> Any:
    # An empty path would be the working folder, an empty host any address.
    if value == "":
        raise ValueError("is empty")
    return value


def _credential(value: Any) -> Any:
    # systemd and container engines hand secrets over as files in a folder whose place they choose.
    # Without that folder the name stays as it is: the command line asks a running hub from outside
    # of the service, where the secrets are not there.
    if not isinstance(value, str) or not value.startswith(CREDENTIAL):
        return value
    name = value.removeprefix(CREDENTIAL)
    if not _CREDENTIAL_NAME.fullmatch(name):
        raise ValueError(f"what follows {CREDENTIAL} is not the name of a credential")
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return str(Path(folder) / name) if folder else value


def host_fault(value: str) -> str:
    """Return why no resolver takes `value` for a host name or address; empty = one does."""
    with suppress(ValueError):
        ipaddress.ip_address(value)
        return ""
    if not value or value.startswith("-") or re.search(r"[/:*\[\]\s]", value):
        return "is no host name; write it without scheme, port, brackets and blanks"
    try:
        value.encode("idna")
    except UnicodeError as error:
        return f"is no host name: {error.__cause__ or error}"
    return ""


def address_fault(url: str) -> str:
    """Return what is wrong with host and port of a URL; empty = nothing."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    fault = host_fault(parts.hostname or "")
    if fault:
        return f"the host {fault}"
    return "the port is 0" if port == 0 else ""


def _host(value: str) -> str:
    fault = host_fault(value)
    if fault:
        raise ValueError(f"{value!r} {fault}")
    return value


def _host_name(value: str) -> str:
    return _host(value).encode("idna").decode().rstrip(".").lower()


NUMBER: Final = BeforeValidator(_no_bool)
"""For types of numbers that have bounds of their own: after these, else JSON Schema misses them."""
Whole = Annotated[int, NUMBER]
Real = Annotated[float, NUMBER]
Text = Annotated[str, BeforeValidator(_not_empty)]
Host = Annotated[Text, AfterValidator(_host)]
"""A name or an address; of IPv6 without brackets."""
HostName = Annotated[str, AfterValidator(_host_name)]
"""The same in the form in which browsers send it in the header Host."""
BytesOrShare = Annotated[
    Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
    | Annotated[str, Field(pattern=r"^([1-9][0-9]?|100)%$")],
    WrapValidator(_bytes_or_share),
]
"""Bytes, or a share of the volume's size."""
OptionalText = Annotated[str | None, BeforeValidator(_not_empty)]
PathName = Annotated[Path, BeforeValidator(_not_empty)]
OptionalPath = Annotated[Path | None, BeforeValidator(_not_empty)]
OptionalFile = Annotated[Path | None, BeforeValidator(_credential), BeforeValidator(_not_empty)]
"""A file to be read: a path, or `credential:<name>` for one of $CREDENTIALS_DIRECTORY."""


class Section(BaseModel):
    """A table of the settings file; a key with `x-needs` is not given without that other one."""

    # All settings are checked as one; what checks a section alone is built where that is needed.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if (getattr(self, _CERTIFICATE, None) is None) != (getattr(self, "key_file", None) is None):
            raise ValueError("certificate_file and key_file belong together")
        lonely: dict[str, list[str]] = {}
        fields = type(self).model_fields
        for name in sorted(self.model_fields_set):
            extra = fields[name].json_schema_extra
            needed = str(extra.get("x-needs", "")) if isinstance(extra, dict) else ""
            is_missing = needed and getattr(self, needed) == fields[needed].default
            if is_missing and getattr(self, name) is not None:
                lonely.setdefault(needed, []).append(name)
        for needed, names in lonely.items():
            also = " and key_file" if needed == _CERTIFICATE else ""
            raise ValueError(f"{', '.join(names)} without {needed}{also}")
        return self
