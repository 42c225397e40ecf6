"""Finds rows that a peer refuses for their sender, or by closing the connection.

Owns the counts of such refusals, the rows that are kept out of a connection to see whether it lasts
without them, and the window of one row; senders are `RefusedSenders`. A peer that refuses
everything makes nothing a dead letter. Invariant: a row becomes a dead letter only if it was
refused alone `CLOSES_MAX` times, and before the last of them the peer took another row, or a
connection lasted, without it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from edgehub.message import FailureKind
from edgehub.pump.refused_senders import RefusedSenders, closed_text

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    from edgehub.message import QueueId, Row, SendResult
    from edgehub.pump.order import Holds
    from edgehub.pump.pumped_queue import PumpedQueue, Sent
    from edgehub.pump.refused_senders import RefusedSender
    from edgehub.pump.window import SendWindow

CLOSES_MAX: Final = 3
STABLE_S: Final = 30.0
"""A connection that lasts so long without a row, with nothing else to send, clears the others."""
SOON_CLOSES_MAX: Final = 2 * CLOSES_MAX
"""Up to so many closes against one row the link is tried again soon."""
SOON_ROWS_MAX: Final = 4
"""From so many rows kept out on the peer itself is the cause, and the link has its back-off."""
KEPT_OUT_MAX: Final = 64
"""Rows kept out of connections at once; a peer that refuses more than that refuses everything."""
SUSPECTS_MAX: Final = 256
"""Rows with counts; the oldest are forgotten first."""
KEPT_OUT_S: Final = 60.0
"""A row is tried again after so long in any case: the peer may take it by now."""
_ENDED: Final = frozenset({FailureKind.CLOSED, FailureKind.DISCONNECTED})


class NextStep(StrEnum):
    """What happens next to a row that closes are counted against."""

    IN_COMPANY = "in_company"  # it is sent with others in flight as before
    ALONE = "alone"  # it is sent with nothing else in flight
    KEPT_OUT = "kept_out"  # it waits until a connection has lasted without it
    HELD = "held"  # its sender's rows are held back; then it is sent alone


class Suspicion(Struct, frozen=True, kw_only=True):
    """The closes that are counted against a row.

    Attributes:
        closes: Closes by the peer while the row was the oldest in flight.
        alone: Those of them while nothing else was in flight.
        cleared: A connection without the row has confirmed another one.
        next: What happens to it now.
        closes_left: Closes until the step after that, None = closes do not lead to it.
        quiet_left_s: Seconds that the connection must last, with nothing else to send, until the
            row is tried for the last time; None = something else waits or is in flight, or the link
            is down.
    """

    closes: int
    alone: int
    cleared: bool
    next: NextStep
    closes_left: int | None
    quiet_left_s: float | None


class CloseCounts(Protocol):
    """Keeps counts over restarts; implemented by the store's `Suspects`."""

    def get(self, offset: int) -> tuple[int, int, bool]:
        """Return closes, those with the row alone in flight, whether it was cleared."""

    def note(self, offset: int, counts: tuple[int, int, bool]) -> None:
        """Store the counts of a row."""

    def forget(self, offset: int) -> None:
        """Remove the counts of a row that has left."""


class Blamed(Struct, frozen=True, kw_only=True):
    """The row that is blamed for a close of the connection and does not go back to its queue.

    Attributes:
        offset: Of the row.
        kind: Of the dead letter.
        reason: Of the dead letter; empty = the row is kept out, and returned later.
    """

    offset: int
    kind: FailureKind = FailureKind.REJECTED
    reason: str = ""


class Poison:
    """The suspected rows of one pump.

    Args:
        endpoint_id: For log lines.
        window: Narrowed to one row during the search, and for each last try.
        rng: Randomness for jitter.
        counts: Keeps counts over restarts.

    Attributes:
        narrow_rows: Rows still to be sent one by one, 0 = no search is under way.
        suspects: Offsets of rows that refusals are counted against.
    """

    def __init__(
        self, endpoint_id: str, window: SendWindow, rng: random.Random, counts: CloseCounts
    ) -> None:
        self._counts = counts
        self._senders = RefusedSenders(endpoint_id, rng)
        self._window = window
        self.narrow_rows = 0
        self._reconnect_soon = False
        self._idle_since: float | None = None
        self._sent: set[int] = set()
        self._kept_out: dict[int, tuple[Row, PumpedQueue, float]] = {}
        self._last_tries: set[int] = set()
        self.suspects: set[int] = set()

    @property
    def checks_senders(self) -> bool:
        """Whether `holds_back` has to be called for rows before they are sent."""
        return self._senders.any_held or bool(self._last_tries)

    def refused_senders(self, now: float) -> tuple[RefusedSender, ...]:
        """Return the senders whose rows are held back.

        Args:
            now: Monotonic seconds.
        """
        return self._senders.statistics(now)

    def kept_out_rows(self, queue_id: QueueId) -> int:
        """Return how many rows of a queue are in hand and not sent."""
        return sum([pumped.queue.id == queue_id for _, pumped, _ in self._kept_out.values()])

    def suspicion(self, row: Row, now: float) -> Suspicion | None:
        """Return the closes that are counted against a row, None = there are none.

        Args:
            row: The row.
            now: Monotonic seconds.
        """
        offset, sender = row.offset, row.message.sender
        closes, alone, cleared = self._counts.get(offset)
        if not closes:
            return None
        step = NextStep.IN_COMPANY
        left: int | None = max(1, CLOSES_MAX - max(closes, self._senders.closes(sender)))
        quiet_left_s = None
        if offset in self._kept_out:
            step, left = NextStep.KEPT_OUT, None
            if self._idle_since is not None:
                quiet_left_s = max(0.0, self._idle_since + STABLE_S - now)
        elif (until := self._senders.held_until(sender)) is not None:
            step = NextStep.ALONE if until <= now else NextStep.HELD
            left = max(1, CLOSES_MAX - alone)
        elif closes >= CLOSES_MAX:
            step, left = NextStep.ALONE, max(1, CLOSES_MAX - alone)
        return Suspicion(
            closes=closes,
            alone=alone,
            cleared=cleared,
            next=step,
            closes_left=left,
            quiet_left_s=quiet_left_s,
        )

    def connected(self) -> None:
        """Start a connection."""
        self._sent.clear()
        self._idle_since = None

    def sent(self, rows: Sequence[Row]) -> None:
        """Record rows that are sent; needed only while there are suspects."""
        self._sent.update(self.suspects.intersection([row.offset for row in rows]))

    def holds_back(
        self, pumped: PumpedQueue, row: Row, holds: Holds, now: float, *, alone: bool
    ) -> bool:
        """Return whether a row that was read may not be sent now.

        A row over which the peer may close the connection is sent with nothing else in flight, so
        that the next close is counted against the right row.

        Args:
            pumped: Where the row was taken from.
            row: The row.
            holds: Holds its sender back where it has to wait.
            now: Monotonic seconds.
            alone: No other row was read, or is in flight.
        """
        sender = row.message.sender
        until = self._senders.held_until(sender) or 0.0
        risks_close = row.offset in self._last_tries or (until and self._senders.closes(sender))
        if risks_close:
            until = max(until, self._senders.no_close_before)
        if now < until:
            holds.hold(pumped, sender, until)
            return True
        if not risks_close:
            return False
        if not self.narrow_rows:
            self._narrow(1)
        return not alone

    def closed(self, failed: Sequence[tuple[Sent, SendResult]], now: float) -> Blamed | None:
        """Count a close of the connection against a row.

        Args:
            failed: Rows of one turn that were not delivered, in the order of sending.
            now: Monotonic seconds.

        Returns:
            The row that is blamed and does not go back to its queue, None = all go back.
        """
        ended = [(sent, result.kind) for sent, result in failed if result.kind in _ENDED]
        if not ended or ended[0][1] is not FailureKind.CLOSED:
            return None
        row, pumped, _, _ = ended[0][0]
        sender, is_alone = row.message.sender, len(ended) == 1
        closes, alone, cleared = self._count(row.offset, alone=is_alone)
        of_sender = self._senders.note(sender, row.offset, "closed by the peer", closed=True)
        self._reconnect_soon = closes <= SOON_CLOSES_MAX and len(self._kept_out) < SOON_ROWS_MAX
        if max(closes, of_sender) >= CLOSES_MAX and not self.narrow_rows:
            self._narrow(len(ended))
        if not is_alone or not self.narrow_rows:
            return None
        self._senders.hold(sender, now)
        if alone < CLOSES_MAX:
            return None
        if cleared:
            text = closed_text(sender, closes)
            return Blamed(offset=row.offset, kind=self._kind(row), reason=text)
        if len(self._kept_out) >= KEPT_OUT_MAX:
            return None
        self._kept_out[row.offset] = (row, pumped, now)
        return Blamed(offset=row.offset)

    def refused(self, row: Row, reason: str, now: float) -> bool:
        """Record a refusal of a row for its sender.

        Args:
            row: The row.
            reason: What the peer said.
            now: Monotonic seconds.

        Returns:
            Whether it is a dead letter now.
        """
        sender = row.message.sender
        until = self._senders.held_until(sender)
        if until is not None and now < until:
            # One of many that were in flight; only the first one counts.
            return False
        _, alone, cleared = self._count(row.offset, alone=True)
        # The connection lasts: what it confirms from now on, it confirms without this row.
        self._sent.discard(row.offset)
        self._senders.note(sender, row.offset, reason, closed=False)
        self._senders.hold(sender, now)
        return alone >= CLOSES_MAX and cleared

    def dead_lettered(self, row: Row) -> None:
        """Forget a row that has become a dead letter."""
        self.forget(row.offset)
        self._senders.dead_lettered(row.message.sender)

    def should_reconnect_soon(self) -> bool:
        """Return, once, whether the link should be tried again soon after a close.

        The peer is reachable; with the back-off of an unreachable one, two refused rows in a row
        would delay all others for minutes.
        """
        soon, self._reconnect_soon = self._reconnect_soon, False
        return soon

    def retry(self, holds: Holds, now: float) -> None:
        """Try refused senders at once, by an operator's command."""
        holds.end_pauses(self._senders.retry(now))

    def settled(self, rows: int) -> None:
        """Count rows that were delivered or became dead letters."""
        if self.narrow_rows:
            self._narrow(max(0, self.narrow_rows - rows))

    def delivered(self, rows: Sequence[Row], count: int, now_ms: int) -> None:
        """Record confirmed rows, of which `count` were in flight."""
        self.settled(count)
        if not self.suspects and not self._senders:
            return
        for offset in self.suspects.intersection([row.offset for row in rows]):
            self.forget(offset)
        self._senders.confirmed({row.message.sender for row in rows})
        # This connection has confirmed another row, and these suspects were not on it.
        self._clear(self.suspects - self._sent)
        self.give_back(now_ms)

    def check(self, now: float, now_ms: int, *, idle: bool) -> float:
        """Expire or return rows that are kept out, once due; return when to check again.

        Args:
            now: Monotonic seconds.
            now_ms: Hub time.
            idle: The link is up, and nothing else waits or is in flight.
        """
        if self._senders:
            self._senders.prune(now)
        if not self._kept_out:
            return math.inf
        for offset, (row, pumped, _) in list(self._kept_out.items()):
            if row.expires_ms <= now_ms:
                del self._kept_out[offset]
                self.forget(offset)
                pumped.expired.append(row)
        since = min([since for _, _, since in self._kept_out.values()], default=math.inf)
        if now - since >= KEPT_OUT_S:
            self.give_back(now_ms)
            return now
        due = min(
            [now + (row.expires_ms - now_ms) / 1000 for row, _, _ in self._kept_out.values()],
            default=math.inf,
        )
        due = min(due, since + KEPT_OUT_S)
        if not idle or len(self._kept_out) != 1:
            self._idle_since = None
            return due
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since >= STABLE_S:
            self._clear(self._kept_out)
            self.give_back(now_ms)
            return now
        return min(due, self._idle_since + STABLE_S)

    def give_back(self, now_ms: int) -> None:
        """Return the rows that were kept out to their places; each is tried alone."""
        kept_out, self._kept_out = self._kept_out, {}
        for offset, (row, pumped, _) in kept_out.items():
            if pumped.put_back(row, now_ms, attempted=False):
                self._last_tries.add(offset)
            else:
                self.forget(offset)

    def forget(self, offset: int) -> None:
        """Forget the counts of a row: it has left, for whatever reason."""
        self.suspects.discard(offset)
        self._last_tries.discard(offset)
        self._counts.forget(offset)

    def _count(self, offset: int, *, alone: bool) -> tuple[int, int, bool]:
        closes, alone_closes, cleared = self._counts.get(offset)
        counts = closes + 1, alone_closes + alone, cleared
        self._counts.note(offset, counts)
        self.suspects.add(offset)
        if len(self.suspects) > SUSPECTS_MAX:
            self.forget(min(self.suspects - self._kept_out.keys()))
        return counts

    def _kind(self, row: Row) -> FailureKind:
        """Return the kind of a dead letter: refused for itself, or for its sender."""
        if row.offset in self._last_tries or not self._senders.is_refused(row.message.sender):
            return FailureKind.REJECTED
        return FailureKind.NOT_AUTHORIZED

    def _clear(self, offsets: Collection[int]) -> None:
        for offset in offsets:
            closes, alone, cleared = self._counts.get(offset)
            if not cleared:
                self._counts.note(offset, (closes, alone, True))

    def _narrow(self, rows: int) -> None:
        if bool(rows) is not bool(self.narrow_rows):
            self._window.narrow(alone=bool(rows))
        self.narrow_rows = rows
