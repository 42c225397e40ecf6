"""Properties of a message under the names that conditions use, which ignore letter case.

Owns the spelling of system property names and the views that lookups go through. Heads spell names
as `SYSTEM_NAMES` does and most application properties are lower case, so that the views are mostly
the message's own dicts.
"""

from __future__ import annotations

from typing import Final

from edgehub.routes.query.text import fold

Properties = dict[str, str | None]

SYSTEM_NAMES: Final = frozenset(
    {
        "messageId",
        "cid",
        "correlationId",
        "to",
        "userId",
        "ack",
        "outputName",
        "contentType",
        "contentEncoding",
        "messageSchema",
        "messageType",
        "creationTime",
        "enqueuedTime",
        "absolute-expiry-time",
        "operation",
        "iothub-interface-id",
        "dt-subject",
        "modelId",
        "rpSenderDeviceId",
        "rpSenderModuleId",
    }
)
"""System properties as heads spell them, without those that the hub derives from the sender."""

_SPELLING: Final = {fold(name): name for name in SYSTEM_NAMES}


def system_name(name: str) -> str:
    """Return the one spelling of a system property name."""
    folded = fold(name)
    return _SPELLING.get(folded, folded)


def app_view(properties: Properties) -> Properties:
    """Return application properties by folded names; of names that differ in case the last wins."""
    names = "".join(properties)
    if names.isascii() and names == names.lower():
        return properties
    return {fold(name): value for name, value in properties.items()}


def system_view(system: Properties) -> Properties:
    """Return system properties by the spelling of `system_name`."""
    if SYSTEM_NAMES.issuperset(system):
        return system
    return {system_name(name): value for name, value in system.items()}
