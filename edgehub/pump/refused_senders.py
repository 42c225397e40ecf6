"""Senders whose rows a peer refuses: by closing the connection, or by saying "not authorized".

Owns their counts and the end of each hold. Invariants: one confirmed row clears its sender; each
hold has an end; bounded, the senders refused longest ago are forgotten first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.endpoints.backoff import delay_s

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

SENDERS_MAX: Final = 256
"""Senders with counts."""
HOLD_S: Final = 4.0
"""The first hold, and the time between two tries that may each cost the connection."""
FORGET_S: Final = 600.0
"""A sender that has sent nothing for so long after its hold is forgotten."""
_FIRST_EXPONENT: Final = 2

log = structlog.get_logger(__name__)


class RefusedSender(Struct, frozen=True, kw_only=True):
    """A sender that is held back, for the status.

    Attributes:
        sender: `<device>` or `<device>/<module>`.
        refusals: How often the peer has refused its rows since it last took one.
        closes: Those of them that were closes of the connection.
        reason: Of the peer's last refusal, or that it closed the connection.
        dead_lettered: Rows of it that have become dead letters since.
        retry_in_s: Seconds until the next row is tried, 0 = as soon as there is one.
    """

    sender: str
    refusals: int
    closes: int
    reason: str
    dead_lettered: int
    retry_in_s: float


class _Record(Struct, eq=False):
    """The state of one sender.

    Attributes:
        until: Monotonic end of the hold, None = it was not held yet.
        others_worked: Rows of others were confirmed since its last refusal.
        several: More than one of its rows was refused.
    """

    first: int
    refusals: int = 0
    closes: int = 0
    dead_lettered: int = 0
    failures: int = 0
    reason: str = ""
    until: float | None = None
    others_worked: bool = False
    several: bool = False


class RefusedSenders:
    """The refused senders of one pump.

    Args:
        endpoint_id: For log lines.
        rng: Randomness for jitter.
    """

    def __init__(self, endpoint_id: str, rng: random.Random) -> None:
        self._endpoint_id = endpoint_id
        self._rng = rng
        self._records: dict[str, _Record] = {}
        self._held = 0
        self._closed_at = -math.inf

    def __len__(self) -> int:
        """Return the number of senders that were refused and have had no row confirmed since."""
        return len(self._records)

    @property
    def any_held(self) -> bool:
        """Whether some sender was held and has had no row confirmed since."""
        return self._held > 0

    def note(self, sender: str, offset: int, reason: str, *, closed: bool) -> int:
        """Record a refusal.

        Args:
            sender: Whose row was refused.
            offset: Of the row.
            reason: The peer's reason.
            closed: The peer closed the connection, and the row was the oldest in flight.

        Returns:
            The closes since the peer took a row of the sender.
        """
        record = self._records.pop(sender, None) or _Record(offset)
        # In the order of their last refusal.
        self._records[sender] = record
        record.refusals += 1
        record.closes += closed
        record.reason = reason
        record.several = record.several or record.first != offset
        if len(self._records) > SENDERS_MAX:
            self._drop(next(iter(self._records)))
        return record.closes

    def hold(self, sender: str, now: float) -> None:
        """Hold a sender whose refusal `note` has just recorded."""
        record = self._records[sender]
        hold_s = HOLD_S
        if record.until is None:
            self._held += 1
            log.warning(
                "pump.sender_held",
                endpoint_id=self._endpoint_id,
                sender=sender,
                refusals=record.refusals,
                reason=record.reason,
                retry_s=HOLD_S,
            )
        elif record.others_worked or not record.closes:
            # While nothing else is delivered there is nothing to protect.
            record.failures += 1
            hold_s = delay_s(record.failures + _FIRST_EXPONENT, self._rng)
            hold_s = max(hold_s, HOLD_S * self._held)
        record.others_worked = False
        record.until = now + hold_s
        if record.closes:
            self._closed_at = now

    def dead_lettered(self, sender: str) -> None:
        """Record that a row of a sender has become a dead letter, if the sender is refused."""
        if sender in self._records:
            self._records[sender].dead_lettered += 1

    @property
    def no_close_before(self) -> float:
        """Monotonic time from which a row may be tried that can cost the connection."""
        return self._closed_at + HOLD_S

    def held_until(self, sender: str) -> float | None:
        """Return the monotonic end of a sender's hold, maybe past; None = it is not held."""
        record = self._records.get(sender)
        return None if record is None else record.until

    def closes(self, sender: str) -> int:
        """Return the closes since the peer took a row of a sender."""
        record = self._records.get(sender)
        return 0 if record is None else record.closes

    def is_refused(self, sender: str) -> bool:
        """Return whether several rows of a sender were refused and none was taken."""
        record = self._records.get(sender)
        return record is not None and record.several

    def confirmed(self, senders: Iterable[str]) -> None:
        """Record that the peer took rows of these senders."""
        for sender in self._records.keys() & senders:
            if self._records[sender].until is not None:
                log.info("pump.sender_released", endpoint_id=self._endpoint_id, sender=sender)
            self._drop(sender)
        for record in self._records.values():
            record.others_worked = True

    def retry(self, now: float) -> set[str]:
        """End all holds, by an operator's command; return the senders."""
        held = {name for name, record in self._records.items() if record.until is not None}
        self._closed_at = -math.inf
        for sender in held:
            self._records[sender].until = now
        return held

    def prune(self, now: float) -> None:
        """Forget senders whose hold ended long ago."""
        for sender, record in list(self._records.items()):
            if record.until is not None and record.until + FORGET_S <= now:
                self._drop(sender)

    def statistics(self, now: float) -> tuple[RefusedSender, ...]:
        """Return the senders that are held, and those whose hold ended recently."""
        return tuple(
            RefusedSender(
                sender=sender,
                refusals=record.refusals,
                closes=record.closes,
                reason=record.reason,
                dead_lettered=record.dead_lettered,
                retry_in_s=max(0.0, record.until - now),
            )
            for sender, record in self._records.items()
            if record.until is not None and now < record.until + FORGET_S
        )

    def _drop(self, sender: str) -> None:
        self._held -= self._records.pop(sender).until is not None


def closed_text(sender: str, closes: int) -> str:
    """Return the reason of a dead letter for a row over which the peer closed the connection."""
    return (
        f"the peer closed the connection over this message {closes} times: it may not take messages"
        f" of {sender} from this hub (see on_behalf at a parent hub), or the message is too large"
    )
