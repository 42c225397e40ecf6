"""The sender of a message from a broker, by its topic.

Pure. The devices are clients of the broker and not of the hub, so the settings say which level of
which topics is the device; the broker's access rules have to protect these topics. Invariant: a
sender is a valid device id, with or without a valid module id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.devices.ids import is_device_id
from edgehub.mqtt.topic_filter import ANY_LEVEL, takes_levels
from edgehub.settings.broker import DEVICE, MODULE, sender_pattern_fault

if TYPE_CHECKING:
    from collections.abc import Iterable


class Senders:
    """The sender patterns of one broker, in the order in which they are tried.

    Args:
        patterns: Topic filters with one level `{device}`, and perhaps another one `{module}`, for
            example `site/{device}/#`.
        hub_id: Sender of all topics that no pattern matches.
    """

    def __init__(self, patterns: Iterable[str], *, hub_id: str) -> None:
        self._hub_id = hub_id
        # Levels of the filter, place of the device and of the module.
        self._patterns: list[tuple[list[str], int, int | None]] = []
        for text in patterns:
            assert not sender_pattern_fault(text), text
            levels = text.split("/")
            wanted = [ANY_LEVEL if each in (DEVICE, MODULE) else each for each in levels]
            module_at = levels.index(MODULE) if MODULE in levels else None
            self._patterns.append((wanted, levels.index(DEVICE), module_at))

    def of(self, topic: str) -> tuple[str, str | None]:
        """Return device and module of a topic."""
        names = topic.split("/")
        for wanted, device_at, module_at in self._patterns:
            if takes_levels(wanted, names):
                device = names[device_at]
                module = None if module_at is None else names[module_at]
                if is_device_id(device) and (module is None or is_device_id(module)):
                    return device, module
        return self._hub_id, None
