"""What the files hold that settings name: seen at each reading, so that a reload can tell.

A password that was corrected, or a certificate that was renewed, changes no setting. Owns what is
remembered of such files: a hash, never their text. Blocks on the disk.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgehub.config.origin import flat_settings

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
"""Somebody compares what these mean, which is more than what they hold."""


def named_files(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Give the files that settings name, by dotted key."""
    for key, value in flat_settings(settings).items():
        if isinstance(value, Path) and key.endswith(FILE_SUFFIX):
            yield key, value


def read_digests(settings: Settings) -> dict[str, str]:
    """Give path and hash of each file that is read on its own, by dotted key.

    Raises:
        OSError: If one cannot be read.
    """
    return {
        key: f"{file}:{hashlib.sha256(file.read_bytes()).hexdigest()}"
        for key, file in named_files(settings)
        if key not in _READ_AS_A_WHOLE
    }


def changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Give the keys whose file holds something else than before, with the same name or another."""
    return tuple(key for key, digest in new.items() if old.get(key, digest) != digest)
