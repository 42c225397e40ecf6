"""Rows that a peer refuses for their sender, or by closing the connection, and their end.

Owns the counts of such refusals, the rows that are kept out of a connection to see how it does
without them, and the narrow window of one row; senders are `RefusedSenders`. A peer that refuses
everything makes nothing a dead letter. Invariant: a row ends here only if it was refused alone
`CLOSES_MAX` times, and before the last of them the peer took another row, or a connection lasted,
without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.message import FailureKind
from edgehub.pump.refused_senders import RefusedSenders, closed_text

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    from edgehub.message import Row, SendResult
    from edgehub.pump.order import Holds
    from edgehub.pump.pumped_queue import PumpedQueue
    from edgehub.pump.refusals import Sent
    from edgehub.pump.refused_senders import RefusedSender
    from edgehub.pump.window import SendWindow

CLOSES_MAX: Final = 3
STABLE_S: Final = 30.0
"""A connection with nothing to send proves as much by lasting so long."""
HURRIED_CLOSES_MAX: Final = 2 * CLOSES_MAX
"""So many closes tell something of a row, and are worth another try soon."""
HURRIED_ROWS_MAX: Final = 4
"""Rows kept out from which on the peer itself is to blame, and has its back-off."""
KEPT_OUT_MAX: Final = 64
"""Rows kept out of connections at once; a peer that refuses more than that refuses everything."""
SUSPECTS_MAX: Final = 256
"""As many as counts are kept of; the oldest, which may have left, are forgotten first."""
KEPT_OUT_S: Final = 60.0
"""Then a row is tried again, whatever became of others: the peer may take it by now."""
_ENDED: Final = frozenset({FailureKind.CLOSED, FailureKind.DISCONNECTED})


class NextStep(StrEnum):
    """What becomes of a row that closes are counted against."""

    IN_COMPANY = "in_company"  # it is sent beside others as before
    ALONE = "alone"  # it is sent with nothing else in flight
    KEPT_OUT = "kept_out"  # it waits for how a connection does without it
    HELD = "held"  # its sender's rows are kept back; then it is sent alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What speaks against a row.

    Attributes:
        closes: Closes by the peer with the row oldest of those in flight.
        alone: Those of them with nothing else in flight.
        cleared: A connection without the row has confirmed another one.
        next: What becomes of it now.
        closes_left: So many more of them until the step after that, None = none brings it on.
        quiet_left_s: So long the connection has to last, with nothing else to send, until the row
            is tried for the last time; None = something else waits or is in flight, or there is no
            link.
    """

    closes: int
    alone: int
    cleared: bool
    next: NextStep
    closes_left: int | None
    quiet_left_s: float | None


class CloseCounts(Protocol):
    """Where counts survive a restart; the store's `Suspects` has this shape."""

    def get(self, offset: int) -> tuple[int, int, bool]:
        """Give closes, those with the row alone in flight, whether a connection did without it."""

    def note(self, offset: int, counts: tuple[int, int, bool]) -> None:
        """Keep the counts of a row."""

    def forget(self, offset: int) -> None:
        """Drop the counts of a row that has left."""


class MemoryCounts:
    """Counts that last as long as the pump."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, bool]] = {}

    def get(self, offset: int) -> tuple[int, int, bool]:
        """See `CloseCounts`."""
        return self._known.get(offset, (0, 0, False))

    def note(self, offset: int, counts: tuple[int, int, bool]) -> None:
        """See `CloseCounts`."""
        self._known[offset] = counts

    def forget(self, offset: int) -> None:
        """See `CloseCounts`."""
        self._known.pop(offset, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """The row that a close of the connection is laid to, where it does not go back to its queue.

    Attributes:
        offset: Of the row.
        kind: As what it becomes a dead letter.
        reason: Of the dead letter; empty = it is kept out, and given back later.
    """

    offset: int
    kind: FailureKind = FailureKind.REJECTED
    reason: str = ""


class Poison:
    """The suspects of one pump.

    Args:
        endpoint_id: For log lines.
        window: Is narrowed to one row while the culprit is looked for, and for each last try.
        rng: Randomness for jitter.

    Attributes:
        counts: Keeps what is known of a row.
        suspects: Offsets of rows that refusals are counted against.
    """

    __slots__ = (
        "_hurries",
        "_idle_since",
        "_kept_out",
        "_last_tries",
        "_narrow_rows",
        "_senders",
        "_sent",
        "_window",
        "counts",
        "suspects",
    )

    def __init__(self, endpoint_id: str, window: SendWindow, rng: random.Random) -> None:
        self.counts: CloseCounts = MemoryCounts()
        self._senders = RefusedSenders(endpoint_id, rng)
        self._window = window
        self._narrow_rows = 0
        self._hurries = False
        self._idle_since: float | None = None
        self._sent: set[int] = set()
        self._kept_out: dict[int, tuple[Row, PumpedQueue, float]] = {}
        self._last_tries: set[int] = set()
        self.suspects: set[int] = set()

    @property
    def narrow_rows(self) -> int:
        """So many more rows leave one by one, 0 = no row is looked for."""
        return self._narrow_rows

    @property
    def keeps_any(self) -> bool:
        """Whether `keeps_back` has to be asked about rows that are to leave."""
        return self._senders.any_held or bool(self._last_tries)

    def refused_senders(self, now: float) -> tuple[RefusedSender, ...]:
        """Return the senders whose rows are kept back.

        Args:
            now: Monotonic seconds.
        """
        return self._senders.statistics(now)

    def suspicion(self, row: Row, now: float) -> Suspicion | None:
        """Return what speaks against a row, None = nothing does.

        Args:
            row: The row.
            now: Monotonic seconds.
        """
        offset, sender = row.offset, row.message.sender
        closes, alone, cleared = self.counts.get(offset)
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
        """Record that a connection begins."""
        self._sent.clear()
        self._idle_since = None

    def sent(self, rows: Sequence[Row]) -> None:
        """Record what is handed over; needed only while there are suspects."""
        self._sent.update(self.suspects.intersection([row.offset for row in rows]))

    def keeps_back(
        self, pumped: PumpedQueue, row: Row, holds: Holds, now: float, *, alone: bool
    ) -> bool:
        """Return whether a row that was read may not leave now.

        What is suspected of having the peer close the connection leaves with nothing else in
        flight, so that the next close is laid to the right row.

        Args:
            pumped: Where the row was taken from.
            row: The row.
            holds: Keeps its sender back where it has to wait.
            now: Monotonic seconds.
            alone: No other row was read, or is in flight.
        """
        sender = row.message.sender
        until = self._senders.held_until(sender) or 0.0
        risks_close = row.offset in self._last_tries or (until and self._senders.closes(sender))
        if risks_close:
            until = max(until, self._senders.no_close_before)
        if now < until:
            holds.hold_sender(pumped, sender, until)
            return True
        if not risks_close:
            return False
        if not self._narrow_rows:
            self._narrow(1)
        return not alone

    def closed(self, failed: Sequence[tuple[Sent, SendResult]], now: float) -> Blamed | None:
        """Take the end of a connection.

        Args:
            failed: Rows of one turn that were not delivered, in the order in which they were sent.
            now: Monotonic seconds.

        Returns:
            The row to blame, if it is not to go back to its queue.
        """
        ended = [(sent, result.kind) for sent, result in failed if result.kind in _ENDED]
        if not ended or ended[0][1] is not FailureKind.CLOSED:
            return None
        row, pumped, _, _ = ended[0][0]
        sender, is_alone = row.message.sender, len(ended) == 1
        closes, alone, cleared = self._count(row.offset, alone=is_alone)
        of_sender = self._senders.note(sender, row.offset, "closed by the peer", closed=True)
        self._hurries = closes <= HURRIED_CLOSES_MAX and len(self._kept_out) < HURRIED_ROWS_MAX
        if max(closes, of_sender) >= CLOSES_MAX and not self._narrow_rows:
            self._narrow(len(ended))
        if not is_alone or not self._narrow_rows:
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
            # One of many that were in flight; the first one counts for all.
            return False
        _, alone, cleared = self._count(row.offset, alone=True)
        # The connection lasts: what it confirms from now on, it does without this row.
        self._sent.discard(row.offset)
        self._senders.note(sender, row.offset, reason, closed=False)
        self._senders.hold(sender, now)
        return alone >= CLOSES_MAX and cleared

    def dead_lettered(self, row: Row) -> None:
        """Record that a row has become a dead letter, and forget what spoke against it."""
        self.forget(row.offset)
        self._senders.dead_lettered(row.message.sender)

    def hurries(self) -> bool:
        """Return, once, whether the close just taken is worth another try soon.

        The peer is there; with the back-off of a link that is unreachable, two rows in a row that
        it refuses would keep all others from it for minutes.
        """
        hurries, self._hurries = self._hurries, False
        return hurries

    def retry(self, holds: Holds, now: float) -> None:
        """Try refused senders at once, on an operator's word."""
        holds.end_pauses(self._senders.retry(now))

    def left(self, rows: int) -> None:
        """Record that so many rows have left."""
        if self._narrow_rows:
            self._narrow(max(0, self._narrow_rows - rows))

    def delivered(self, results: Sequence[tuple[Row, SendResult]], count: int, now_ms: int) -> None:
        """Record what was confirmed: those of `results` without a failure, `count` in number."""
        self.left(count)
        if not self.suspects and not self._senders:
            return
        confirmed = [row for row, result in results if result.kind is None]
        for offset in self.suspects.intersection([row.offset for row in confirmed]):
            self.forget(offset)
        self._senders.confirmed({row.message.sender for row in confirmed})
        # This connection has confirmed another row, and these suspects were not on it.
        self._clear(self.suspects - self._sent)
        self._give_back(now_ms)

    def look(self, now: float, now_ms: int, *, idle: bool) -> float:
        """Expire or return rows that are kept out, once due; returns the time of the next look.

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
            self._give_back(now_ms)
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
            self._give_back(now_ms)
            return now
        return min(due, self._idle_since + STABLE_S)

    def give_back_all(self, now_ms: int) -> None:
        """Let go of the rows that are kept out: the pump ends."""
        self._give_back(now_ms)

    def forget(self, offset: int) -> None:
        """Hold nothing against a row any more: it has left, for whatever reason."""
        self.suspects.discard(offset)
        self._last_tries.discard(offset)
        self.counts.forget(offset)

    def _count(self, offset: int, *, alone: bool) -> tuple[int, int, bool]:
        closes, alone_closes, cleared = self.counts.get(offset)
        counts = closes + 1, alone_closes + alone, cleared
        self.counts.note(offset, counts)
        self.suspects.add(offset)
        if len(self.suspects) > SUSPECTS_MAX:
            self.forget(min(self.suspects - self._kept_out.keys()))
        return counts

    def _kind(self, row: Row) -> FailureKind:
        """Return as what a row ends over which the peer closes: for itself, or for its sender."""
        if row.offset in self._last_tries or not self._senders.is_refused(row.message.sender):
            return FailureKind.REJECTED
        return FailureKind.NOT_AUTHORIZED

    def _clear(self, offsets: Collection[int]) -> None:
        for offset in offsets:
            closes, alone, cleared = self.counts.get(offset)
            if not cleared:
                self.counts.note(offset, (closes, alone, True))

    def _give_back(self, now_ms: int) -> None:
        """Put the rows that were kept out back to their places; those are tried alone."""
        kept_out, self._kept_out = self._kept_out, {}
        for offset, (row, pumped, _) in kept_out.items():
            if pumped.put_back(row, now_ms, attempted=False):
                self._last_tries.add(offset)
            else:
                self.forget(offset)

    def _narrow(self, rows: int) -> None:
        if bool(rows) is not bool(self._narrow_rows):
            self._window.narrow(alone=bool(rows))
        self._narrow_rows = rows
