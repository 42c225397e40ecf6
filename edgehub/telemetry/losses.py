"""What was lost in the last hour: totals that parts keep anyway, looked at from time to time.

Owns how much each total grew in each minute of the last hour, its newest example, and the rate of
the log lines about it; costs the message path nothing. Invariant: bounded by the number of totals
that the parts have, whatever clients do.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct, field

from edgehub.telemetry.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from edgehub.clock import Clock

LOOK_S: Final = 5.0
LINE_S: Final = 60.0
"""Shortest time between two log lines about one total."""
MINUTE_S: Final = 60.0
MINUTES: Final = 60
EXAMPLE_CHARS_MAX: Final = 160

_SINGULAR: Final = {"was": "was", "they": "it", "them": "it", "their": "its"}
_PLURAL: Final = {"was": "were", "they": "they", "them": "them", "their": "their"}

ON_BEHALF_LOSS: Final = "of devices outside of on_behalf of {their} client {was} refused"
ON_BEHALF_HINT: Final = (
    "add a pattern to its identity (edgehub identity set ID --on-behalf ...), then reload"
)
"""Of each head whose clients may be child hubs."""

LOOP_LOSS: Final = "that had been in this hub before {was} dropped"
LOOP_HINT: Final = (
    "hubs send each other's messages round in a circle: point [upstream] or an endpoint of one of"
    " them elsewhere, or narrow the route that sends them on"
)
"""Likewise."""

log = structlog.get_logger(__name__)


class Loss(Struct, frozen=True, kw_only=True):
    """One way in which messages are lost, as its part counts them.

    Attributes:
        key: Identifies it among all others.
        total: Messages since the start.
        what: What became of them, to stand behind `3 messages`; `{was}`, `{they}`, `{them}` and
            `{their}` become the singular or the plural.
        why: Why, or empty; likewise.
        example: The newest message as far as it is known, or empty.
        hint: What to do or where to look, or empty.
        event: Log event of its own, empty = the part writes log lines itself.
        fields: Of the log line.
    """

    key: tuple[str, ...]
    total: int
    what: str
    why: str = ""
    example: str = ""
    hint: str = ""
    event: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


class _Total(Struct, eq=False):
    """How one total grew."""

    last: int = 0
    example: str = ""
    newest_s: float = 0.0
    line_s: float | None = None
    unlogged: int = 0
    _minutes: deque[tuple[int, int]] = field(default_factory=deque)

    def grow(self, number: int, minute: int) -> None:
        if self._minutes and self._minutes[-1][0] == minute:
            number += self._minutes.pop()[1]
        self._minutes.append((minute, number))

    def recent(self, minute: int) -> int:
        while self._minutes and minute - self._minutes[0][0] >= MINUTES:
            self._minutes.popleft()
        return sum([number for _, number in self._minutes])


class RecentLosses:
    """The losses of the last hour, as warnings.

    Args:
        clock: Timers.
        sources: Return what parts have lost since the start.
    """

    def __init__(self, clock: Clock, sources: Iterable[Callable[[], Iterable[Loss]]]) -> None:
        self._clock = clock
        self._sources = tuple(sources)
        self._totals: dict[tuple[str, ...], _Total] = {}

    async def run(self) -> None:
        """Call `look` every `LOOK_S` seconds until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_S)

    def warnings(self) -> list[str]:
        """List what was lost in the last hour, with the newest example of each."""
        found = self.look()
        minute = self._minute()
        return [
            self._text(loss, number, self._totals[loss.key])
            for loss in found
            if (number := self._totals[loss.key].recent(minute))
        ]

    def look(self) -> list[Loss]:
        """Record how the totals grew, log it at a bounded rate, and return them."""
        found = [loss for source in self._sources for loss in source()]
        minute, now_s = self._minute(), self._clock.monotonic()
        before, self._totals = self._totals, {}
        for loss in found:
            total = self._totals[loss.key] = before.get(loss.key) or _Total()
            # A queue that was removed and made again counts from 0.
            grown = loss.total - total.last if loss.total >= total.last else loss.total
            total.last = loss.total
            if grown:
                total.grow(grown, minute)
                total.unlogged += grown
                total.newest_s = now_s
                total.example = loss.example[:EXAMPLE_CHARS_MAX]
            if loss.event and total.unlogged:
                _log(loss, total, now_s)
        return found

    def _text(self, loss: Loss, number: int, total: _Total) -> str:
        words = _SINGULAR if number == 1 else _PLURAL
        text = f"{counted(number, 'message')} {loss.what.format_map(words)} in the last hour"
        if loss.why:
            text += f", {loss.why.format_map(words)}"
        # From its age, so that a clock that was set since has no part in it.
        newest_ms = self._clock.wall_ms() - (self._clock.monotonic() - total.newest_s) * 1000
        newest = datetime.fromtimestamp(newest_ms / 1000, UTC).strftime("newest at %H:%M UTC")
        about = f"{newest}: {total.example}" if total.example else newest
        return f"{text} ({'; '.join(filter(None, (about, loss.hint)))})"

    def _minute(self) -> int:
        return int(self._clock.monotonic() // MINUTE_S)


def _log(loss: Loss, total: _Total, now_s: float) -> None:
    if total.line_s is not None and now_s - total.line_s < LINE_S:
        return
    log.warning(loss.event, **loss.fields, messages=total.unlogged, total=loss.total)
    total.line_s = now_s
    total.unlogged = 0
