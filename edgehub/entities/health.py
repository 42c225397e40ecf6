"""Health of services: the status that a message says, however odd the message.

Pure. Rules: docs/entities.md.
"""

from __future__ import annotations

from typing import Final

import orjson

from edgehub.entities.topics import default_name

UNKNOWN: Final = "unknown"
UP: Final = "up"
_BRIDGE: Final = {b"1": UP, b"0": "down"}


def read_status(topic_id: str, payload: bytes) -> str:
    """Give the status; a message that says none, or cannot be read, says `unknown`."""
    name = default_name(topic_id)
    if (
        name is not None
        and name.service.startswith("mosquitto-")
        and name.service.endswith("-bridge")
    ):
        return _BRIDGE.get(payload, UNKNOWN)
    try:
        document = orjson.loads(payload)
    except ValueError:
        return UNKNOWN
    status = document.get("status") if isinstance(document, dict) else None
    return status if isinstance(status, str) and status else UNKNOWN


def is_own_bridge(topic_id: str, cloud_prefix: str) -> bool:
    """Say whether a service is Mosquitto's bridge to the cloud."""
    name = default_name(topic_id)
    return name is not None and name.service == f"mosquitto-{cloud_prefix}-bridge"
