"""What the files hold that settings name: checked, and hashed so that a reload finds changes.

A password that was corrected, or a certificate that was renewed, changes no setting. Owns what is
remembered of such files: a hash, never their text. Blocks on the disk.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgehub.devices.private_file import exposed_mode
from edgehub.errors import ConfigError
from edgehub.settings.origin import flat_settings
from edgehub.storage.credentials import read_access_key, read_certificate, read_secret, tls_faults
from edgehub.storage.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edgehub.settings import Settings

FILE_SUFFIX: Final = "_file"
"""By convention a setting whose name ends so names a file that must be there."""

_READ_AS_A_WHOLE: Final = frozenset(
    {
        "mqtt.identities_file",
        "mqtt.certificate_file",
        "mqtt.key_file",
        "mqtt.client_ca_file",
        "web.token_file",
    }
)
"""The meaning of these is compared, which is more than their content."""
_SECRETS: Final = {
    "password_file": read_secret,
    "token_file": read_secret,
    "shared_access_key_file": read_access_key,
}
_CHECKS: Final = {**_SECRETS, "trust_bundle_file": read_certificate}
"""Read files that need no other one to be judged."""


def named_files(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Return the files that settings name, by dotted key."""
    for key, value in flat_settings(settings).items():
        if isinstance(value, Path) and key.endswith(FILE_SUFFIX):
            yield key, value


def file_faults(settings: Settings) -> Iterator[ConfigError]:
    """Yield what is wrong with secrets, certificates, keys and authorities that settings name.

    Those of listeners that are on are checked with their other settings.
    """
    sections: dict[str, dict[str, Path]] = {}
    for key, file in named_files(settings):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = file
    for section, files in sections.items():
        for name, file in files.items():
            read = _CHECKS.get(name)
            if read is not None and f"{section}.{name}" not in _READ_AS_A_WHOLE:
                try:
                    read(f"{section}.{name}", file)
                except ConfigError as error:
                    yield error
        if section not in listeners_with_files(settings):
            yield from tls_faults(
                section,
                certificate_file=files.get("certificate_file"),
                key_file=files.get("key_file"),
                authorities=("ca_file", files.get("ca_file")),
            )


def exposed_files(settings: Settings) -> Iterator[str]:
    """Yield warnings of secrets and keys that every user of the machine may read or change.

    Not of those that a service manager or container engine handed over, which sees to it itself,
    nor of files of identities and tokens, which are warned of where they are taken over.
    """
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    for key, file in named_files(settings):
        if key in _READ_AS_A_WHOLE - {"mqtt.key_file"} or not key.endswith(
            (*_SECRETS, "key_file", "devices_file")
        ):
            continue
        if folder is not None and file.is_relative_to(folder):
            continue
        mode = exposed_mode(file) or 0
        rights = [
            word for bit, word in ((stat.S_IROTH, "read"), (stat.S_IWOTH, "change")) if mode & bit
        ]
        if rights:
            may = " and ".join(rights)
            yield f"{key}: every user of this machine may {may} {file}; chmod 600 {file}"


def listeners_with_files(settings: Settings) -> set[str]:
    """Return the sections of listeners that are on."""
    ports = {"http": settings.http.port, "lora": settings.lora.port, "web": settings.web.port}
    return {"mqtt", *(section for section, port in ports.items() if port is not None)}


def read_digests(settings: Settings) -> dict[str, str]:
    """Return path and hash of each file that is read on its own, by dotted key.

    Raises:
        OSError: If one cannot be read.
    """
    return {
        key: f"{file}:{hashlib.sha256(read_regular(file)).hexdigest()}"
        for key, file in named_files(settings)
        if key not in _READ_AS_A_WHOLE
    }


def changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys whose file has other content than before, whatever its name."""
    return tuple(key for key, digest in new.items() if old.get(key, digest) != digest)
