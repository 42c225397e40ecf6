"""The books of the self-test: what each device sent, and what was acknowledged.

Owns one byte per message. A device numbers its messages from 0 on; even ones are delivered at once,
odd ones are kept. Invariant: a number counts as acknowledged only after its PUBACK.
"""

from __future__ import annotations

from typing import Final

_SENT: Final = 0
_ACKNOWLEDGED: Final = 1


class Sent:
    """The messages of one device."""

    __slots__ = ("_states", "acknowledged", "resent")

    def __init__(self) -> None:
        self._states = bytearray()
        self.acknowledged = 0
        self.resent: set[int] = set()
        """Numbers that were sent more than once, because no PUBACK came."""

    @property
    def count(self) -> int:
        """How many numbers were given out."""
        return len(self._states)

    def send(self) -> int:
        """Return the next number."""
        self._states.append(_SENT)
        return len(self._states) - 1

    def acknowledge(self, number: int) -> None:
        """Record the PUBACK."""
        assert self._states[number] == _SENT, number
        self._states[number] = _ACKNOWLEDGED
        self.acknowledged += 1

    def is_acknowledged(self, number: int) -> bool:
        """Whether the PUBACK of a number has come."""
        return self._states[number] == _ACKNOWLEDGED

    def resend(self) -> list[int]:
        """List the numbers without a PUBACK, in order, and note that they are sent again."""
        numbers: list[int] = []
        at = self._states.find(_SENT)
        while at >= 0:
            numbers.append(at)
            at = self._states.find(_SENT, at + 1)
        self.resent.update(numbers)
        return numbers


class Ledger:
    """The books of all devices.

    Args:
        device_ids: Who sends.
    """

    def __init__(self, *device_ids: str) -> None:
        self.devices = {device_id: Sent() for device_id in device_ids}

    @property
    def acknowledged(self) -> int:
        """Messages that the hub has taken over."""
        return sum(sent.acknowledged for sent in self.devices.values())


def is_kept(number: int) -> bool:
    """Whether a message waits in the hub for a module that never comes."""
    return number % 2 == 1
