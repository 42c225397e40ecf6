"""Rows that a peer refuses without a word, by closing the connection: which one it is, and its end.

Owns the counts of such closes, the rows that are kept out of a connection to see how it does
without them, and the narrow window of one row. A peer that closes on everything makes nothing a
dead letter. Invariant: a row ends here only if it was alone in flight at `CLOSES_MAX` closes by the
peer, and a connection without it did better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from edgehub.message import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import Row, SendResult
    from edgehub.pump.lane import Lane
    from edgehub.pump.refusals import Sent
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
REASON: Final = "connection closed"
_ENDED: Final = frozenset({FailureKind.CLOSED, FailureKind.DISCONNECTED})

log = structlog.get_logger(__name__)


class NextStep(StrEnum):
    """What becomes of a row that closes are counted against."""

    IN_COMPANY = "in_company"  # it is sent beside others as before
    ALONE = "alone"  # it is sent with nothing else in flight
    KEPT_OUT = "kept_out"  # it waits for how a connection does without it


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
            is a dead letter; None = something else waits or is in flight, or there is no link.
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


class Poison:
    """The suspects of one pump.

    Args:
        endpoint_id: For log lines.
        window: Is narrowed to one row while the culprit is looked for.

    Attributes:
        counts: Keeps what is known of a row.
        suspects: Offsets of rows that closes are counted against.
    """

    __slots__ = (
        "_endpoint_id",
        "_hurries",
        "_idle_since",
        "_kept_out",
        "_narrow_rows",
        "_sent",
        "_window",
        "counts",
        "suspects",
    )

    def __init__(self, endpoint_id: str, window: SendWindow) -> None:
        self._endpoint_id = endpoint_id
        self.counts: CloseCounts = MemoryCounts()
        self._window = window
        self._narrow_rows = 0
        self._hurries = False
        self._idle_since: float | None = None
        self._sent: set[int] = set()
        self._kept_out: dict[int, tuple[Row, Lane]] = {}
        self.suspects: set[int] = set()

    @property
    def narrow_rows(self) -> int:
        """So many more rows leave one by one, 0 = no row is looked for."""
        return self._narrow_rows

    def suspicion(self, offset: int, now: float) -> Suspicion | None:
        """Say what speaks against a row, None = nothing does.

        Args:
            offset: Of the row.
            now: Monotonic seconds.
        """
        closes, alone, cleared = self.counts.get(offset)
        if not closes:
            return None
        step = NextStep.IN_COMPANY
        left: int | None = CLOSES_MAX - closes
        quiet_left_s = None
        if offset in self._kept_out:
            step, left = NextStep.KEPT_OUT, None
            if self._idle_since is not None:
                quiet_left_s = max(0.0, self._idle_since + STABLE_S - now)
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
        """Note that a connection begins."""
        self._sent.clear()
        self._idle_since = None

    def sent(self, rows: Sequence[Row]) -> None:
        """Note what is handed over; needed only while there are suspects."""
        self._sent.update(self.suspects.intersection([row.offset for row in rows]))

    def closed(self, failed: Sequence[tuple[Sent, SendResult]]) -> int | None:
        """Take the end of a connection.

        Args:
            failed: Rows of one turn that were not delivered, in the order in which they were sent.

        Returns:
            Offset of a row that is kept from now on; it is given back or a dead letter later.
        """
        ended = [(sent, result.kind) for sent, result in failed if result.kind in _ENDED]
        if not ended or ended[0][1] is not FailureKind.CLOSED:
            return None
        row, lane, _, _ = ended[0][0]
        closes, alone, cleared = self.counts.get(row.offset)
        closes += 1
        alone += len(ended) == 1
        self.counts.note(row.offset, (closes, alone, cleared))
        self.suspects.add(row.offset)
        if len(self.suspects) > SUSPECTS_MAX:
            self.forget(min(self.suspects - self._kept_out.keys()))
        self._hurries = closes <= HURRIED_CLOSES_MAX and len(self._kept_out) < HURRIED_ROWS_MAX
        if closes >= CLOSES_MAX and not self._narrow_rows:
            self._narrow(len(ended))
        if alone < CLOSES_MAX or len(self._kept_out) >= KEPT_OUT_MAX:
            return None
        self._kept_out[row.offset] = (row, lane)
        if cleared:
            self._end_all()
        return row.offset

    def hurries(self) -> bool:
        """Tell, once, whether the close just taken is worth another try soon.

        The peer is there; with the back-off of a link that is away, two rows in a row that it
        refuses would keep all others from it for minutes.
        """
        hurries, self._hurries = self._hurries, False
        return hurries

    def left(self, rows: int) -> None:
        """Note that so many rows have left."""
        if self._narrow_rows:
            self._narrow(max(0, self._narrow_rows - rows))

    def delivered(self, results: Sequence[tuple[Row, SendResult]], count: int) -> None:
        """Note what was confirmed: those of `results` without a failure, `count` in number."""
        self.left(count)
        if not self.suspects:
            return
        confirmed = [row.offset for row, result in results if result.kind is None]
        for offset in self.suspects.intersection(confirmed):
            self.forget(offset)
        for offset in self.suspects - self._sent:
            # This connection has confirmed another row, and the suspect was not on it.
            closes, alone, cleared = self.counts.get(offset)
            if not cleared:
                self.counts.note(offset, (closes, alone, True))
        if self._kept_out:
            self._end_all()

    def look(self, now: float, now_ms: int, *, idle: bool) -> float:
        """See to the rows that are kept out; gives the time at which to look again.

        Args:
            now: Monotonic seconds.
            now_ms: Hub time.
            idle: The link is up, and nothing else waits or is in flight.
        """
        if not self._kept_out:
            return math.inf
        for offset, (row, lane) in list(self._kept_out.items()):
            if row.expires_ms <= now_ms:
                del self._kept_out[offset]
                self.forget(offset)
                lane.expired.append(row)
        due = now + min(
            [(row.expires_ms - now_ms) / 1000 for row, _ in self._kept_out.values()],
            default=math.inf,
        )
        if not idle or len(self._kept_out) != 1:
            self._idle_since = None
            return due
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since >= STABLE_S:
            self._end_all()
            return math.inf
        return min(due, self._idle_since + STABLE_S)

    def give_back_all(self, now_ms: int) -> None:
        """Let go of the rows that are kept out: the pump ends."""
        kept_out, self._kept_out = self._kept_out, {}
        for row, lane in kept_out.values():
            lane.put_back(row, now_ms, attempted=False)

    def _end_all(self) -> None:
        kept_out, self._kept_out = self._kept_out, {}
        for offset, (row, lane) in kept_out.items():
            self.forget(offset)
            lane.bury(row, FailureKind.REJECTED, REASON)
        self.left(len(kept_out))
        log.warning(
            "pump.rows_dead_lettered",
            endpoint_id=self._endpoint_id,
            rows=len(kept_out),
            reason=REASON,
        )

    def forget(self, offset: int) -> None:
        """Hold nothing against a row any more: it has left, for whatever reason."""
        self.suspects.discard(offset)
        self.counts.forget(offset)

    def _narrow(self, rows: int) -> None:
        if bool(rows) is not bool(self._narrow_rows):
            self._window.narrow(alone=bool(rows))
        self._narrow_rows = rows
