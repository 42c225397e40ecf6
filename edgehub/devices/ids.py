"""Ids of devices and modules: which characters they may have, and the two parts of an identity.

Pure functions. Invariant: an id that passed `is_device_id` can stand as one level of a topic as it
is; `/`, `+`, `#`, blanks and control characters never do.
"""

from __future__ import annotations

import re
from typing import Final

ID_RULE: Final = "1 to 128 of the characters A-Z a-z 0-9 - . % _ * ? ! ( ) , : = @ $ '"

_ID: Final = re.compile(r"[A-Za-z0-9\-.%_*?!(),:=@$']{1,128}")


def is_device_id(text: str) -> bool:
    """Return whether `text` can name a device or a module."""
    return _ID.fullmatch(text) is not None


def split_sender(text: str) -> tuple[str, str | None] | None:
    """Split `<device>` or `<device>/<module>`, None = it is neither."""
    device_id, slash, module_id = text.partition("/")
    if not is_device_id(device_id) or (slash and not is_device_id(module_id)):
        return None
    return device_id, module_id if slash else None
