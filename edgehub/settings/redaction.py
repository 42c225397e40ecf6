"""What of a setting may be shown: secrets are blanked out.

Settings name files that hold secrets; this is for what slipped in, such as a URL with a password.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic import SecretStr

HIDDEN: Final = "***"
INTEGER_BITS_MAX: Final = 64
"""Larger integers are described: JSON readers refuse them, and Python those of 4 300 digits."""

_SECRET_NAME: Final = re.compile(
    r"(password|passphrase|secret|token|credential|authorization|cookie|api[-_]?key)", re.IGNORECASE
)
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]*@")


def shown(key: str, value: object) -> object:
    """Return a value as JSON can hold it, with secrets blanked out.

    Args:
        key: Dotted key of the setting.
        value: Its value.
    """
    if isinstance(value, dict):
        return {name: shown(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(key, item) for item in value]
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return value
    name = key.rpartition(".")[2]
    secret = _SECRET_NAME.search(name) is not None and not name.endswith("_file")
    if secret or isinstance(value, SecretStr):
        return HIDDEN
    return _USER_INFO.sub(f"{HIDDEN}@", str(value))
