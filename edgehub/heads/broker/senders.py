"""Who sent a message that comes from a broker, as far as its topic tells.

Pure. Nobody has signed in here, so the settings say which level of which topics names the device;
the broker's access rules vouch for it. Invariant: what comes out can stand as a device's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.devices.ids import is_device_id
from edgehub.mqtt.topic_filter import ANY_LEVEL, takes_levels
from edgehub.settings.broker import DEVICE, MODULE, sender_pattern_fault

if TYPE_CHECKING:
    from collections.abc import Iterable


class SenderPattern:
    """A topic filter in which one level is `{device}`, and perhaps another one `{module}`.

    Args:
        text: For example `site/{device}/#`; the settings have checked it.
    """

    __slots__ = ("_device_at", "_levels", "_module_at")

    def __init__(self, text: str) -> None:
        assert not sender_pattern_fault(text), text
        levels = text.split("/")
        self._levels = [ANY_LEVEL if each in (DEVICE, MODULE) else each for each in levels]
        self._device_at = levels.index(DEVICE)
        self._module_at = levels.index(MODULE) if MODULE in levels else -1

    def sender(self, names: list[str]) -> tuple[str, str | None] | None:
        """Return device and module of a topic, split at its slashes; None = it does not fit."""
        if not takes_levels(self._levels, names):
            return None
        device = names[self._device_at]
        module = names[self._module_at] if self._module_at >= 0 else None
        if not is_device_id(device) or (module is not None and not is_device_id(module)):
            return None
        return device, module


class Senders:
    """The patterns of one broker, in the order in which they are tried.

    Args:
        patterns: See `SenderPattern`.
        hub_id: Sender of all topics that no pattern fits.
    """

    __slots__ = ("_hub_id", "_patterns")

    def __init__(self, patterns: Iterable[str], *, hub_id: str) -> None:
        self._patterns = tuple(SenderPattern(text) for text in patterns)
        self._hub_id = hub_id

    def of(self, topic: str) -> tuple[str, str | None]:
        """Return device and module of a topic."""
        names = topic.split("/")
        for pattern in self._patterns:
            sender = pattern.sender(names)
            if sender is not None:
                return sender
        return self._hub_id, None
