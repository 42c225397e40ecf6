"""The judgement: acknowledged messages are looked for, copies distinguished, order checked.

Pure; sees every copy once, those that were delivered first. Invariant: a message without a PUBACK
may be there or not, one with a PUBACK must be.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from edgehub.lab.selftest.ledger import is_kept

if TYPE_CHECKING:
    from edgehub.lab.selftest.ledger import Ledger

EXAMPLES_MAX: Final = 10


class Copy(NamedTuple):
    """One copy of a message that was found.

    Attributes:
        device_id: Who sent it.
        number: Which of the device's messages it is.
        message_id: The hub's name for it: one per PUBLISH that the hub stored.
    """

    device_id: str
    number: int
    message_id: str


class _Class(Enum):
    FIRST = auto()
    AGAIN = auto()
    RESENT = auto()
    UNKNOWN = auto()


class Findings(Struct, frozen=True, kw_only=True):
    """What became of the messages.

    Attributes:
        acknowledged: Messages with a PUBACK.
        unacknowledged: Messages for which no PUBACK came to the end.
        delivered: Different messages that were delivered.
        waiting: Different messages that were not delivered and wait in the hub.
        lost: Acknowledged ones that are neither.
        lost_examples: The first of them, as `<device> <number>`.
        redelivered: Further deliveries of what the hub had delivered before.
        resent: Further copies because a device sent again what it had no PUBACK for.
        out_of_order: Messages that came for the first time behind a later one of their device and
            queue.
        unknown: Copies that no device has sent.
    """

    acknowledged: int
    unacknowledged: int
    delivered: int
    waiting: int
    lost: int
    lost_examples: tuple[str, ...]
    redelivered: int
    resent: int
    out_of_order: int
    unknown: int

    def faults(self) -> list[str]:
        """Return what is wrong, empty = nothing."""
        found = []
        if not self.acknowledged:
            found.append("no message was acknowledged, so nothing was tested")
        if self.lost:
            found.append(f"{self.lost} acknowledged messages are lost")
        if self.out_of_order:
            found.append(f"{self.out_of_order} messages are out of order")
        if self.unknown:
            found.append(f"{self.unknown} messages were found that were not sent")
        return found


class Judge:
    """Takes the copies and says what is missing.

    Args:
        ledger: The books, complete.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen = {name: bytearray(sent.count) for name, sent in ledger.devices.items()}
        self._last: dict[tuple[str, bool], int] = {}
        # Only where a device sent twice do two message ids mean two PUBLISHes.
        self._ids: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._delivered = 0
        self._waiting = 0
        self._redelivered = 0
        self._resent = 0
        self._out_of_order = 0
        self._unknown = 0

    def deliver(self, copy: Copy) -> None:
        """Take a delivered copy; in the order of deliveries."""
        found = self._class_of(copy)
        if found is _Class.FIRST:
            self._delivered += 1
        elif found is _Class.AGAIN:
            self._redelivered += 1

    def keep(self, copy: Copy) -> None:
        """Take a copy that waits in the hub, after all deliveries; in the order of its queue."""
        # One that was delivered and waits still may come again; so far it has not.
        if self._class_of(copy) is _Class.FIRST:
            self._waiting += 1

    def findings(self) -> Findings:
        """Sum up."""
        lost = 0
        examples: list[str] = []
        for device_id, sent in self._ledger.devices.items():
            seen = self._seen[device_id]
            missing = [n for n in range(sent.count) if not seen[n] and sent.is_acknowledged(n)]
            lost += len(missing)
            examples += [f"{device_id} {number}" for number in missing[:EXAMPLES_MAX]]
        sent_total = sum(sent.count for sent in self._ledger.devices.values())
        return Findings(
            acknowledged=self._ledger.acknowledged,
            unacknowledged=sent_total - self._ledger.acknowledged,
            delivered=self._delivered,
            waiting=self._waiting,
            lost=lost,
            lost_examples=tuple(examples[:EXAMPLES_MAX]),
            redelivered=self._redelivered,
            resent=self._resent,
            out_of_order=self._out_of_order,
            unknown=self._unknown,
        )

    def _class_of(self, copy: Copy) -> _Class:
        sent = self._ledger.devices.get(copy.device_id)
        if sent is None or not 0 <= copy.number < sent.count:
            self._unknown += 1
            return _Class.UNKNOWN
        seen = self._seen[copy.device_id]
        found = _Class.AGAIN
        if copy.number in sent.resent:
            ids = self._ids[copy.device_id, copy.number]
            if ids and copy.message_id not in ids:
                self._resent += 1
                found = _Class.RESENT
            ids.add(copy.message_id)
        if seen[copy.number]:
            return found
        seen[copy.number] = 1
        self._check_order(copy)
        return _Class.FIRST

    def _check_order(self, copy: Copy) -> None:
        order = (copy.device_id, is_kept(copy.number))
        if copy.number < self._last.get(order, -1):
            self._out_of_order += 1
        else:
            self._last[order] = copy.number
