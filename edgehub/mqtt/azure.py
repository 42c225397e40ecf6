"""Which peers are Azure IoT Hub."""

from __future__ import annotations

import re
from typing import Final

_AZURE: Final = re.compile(r"\.azure-devices\.(net|cn|us)\.?$", re.IGNORECASE)


def is_azure(host: str) -> bool:
    """Return whether a host is Azure IoT Hub, whose MQTT 5 is a preview with other topics."""
    return _AZURE.search(host) is not None
