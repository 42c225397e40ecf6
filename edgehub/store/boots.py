"""Hub time over restarts and boots of the machine, and its relation to UTC.

Owns the rows of table `boot`: one per stretch in which hub time follows CLOCK_BOOTTIME. Every
commit rewrites the newest, so after a crash hub time goes on from the last commit at the latest.
Decides whether the wall clock is to be trusted. Invariant: hub time never goes back, and never
jumps while the hub runs; what the machine's power-off adds is added before the first row, or by
moving the past back (`ageing`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from edgehub.clock import HubTime
from edgehub.store.options import ClockTrust, TtlWhileOff
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.clock import Clock
    from edgehub.store.encoding import Params

WALL_FLOOR_MS: Final = 1_698_796_800_000
"""November 2023, before this program was written: a clock that shows less was never set."""
WALL_CEILING_MS: Final = 7_258_118_400_000
"""The year 2200."""
FIRST_HUB_MS: Final = 1 << 43
"""Hub time of a new file: the past may be moved back by 278 years before it meets zero."""
BEHIND_MAX_MS: Final = 60_000
"""A trusted clock may be behind the last known time by at most this."""


class StoredBoot(NamedTuple):
    """One row of the table; see schema.sql."""

    seq: int
    boot_id: str
    first_hub_ms: int
    first_wall_ms: int
    boottime_ms: int
    hub_ms: int
    wall_ms: int
    high_water: int
    wall_trusted: int
    first_offset: int

    @property
    def ahead_ms(self) -> int:
        """UTC minus hub time."""
        return self.wall_ms - self.hub_ms


BOOT_COLUMNS: Final = ", ".join(StoredBoot._fields)


class ClockStatistics(Struct, frozen=True, kw_only=True):
    """The state of the wall clock.

    Attributes:
        trusted: UTC times are right, and the time that the machine was off has been counted.
        reason: Why not, empty when it is trusted.
        off_s: Seconds that the machine was off, as added to the age of what waits.
        correction_s: Seconds by which times of this run differ from the wall clock at its start.
        ageing: Rows are being given the age that they gained while the machine was off.
    """

    trusted: bool
    reason: str
    off_s: float
    correction_s: float
    ageing: bool


class PowerOff(Struct, frozen=True, kw_only=True):
    """Time that the machine was off, to be added to the age of older rows.

    Attributes:
        off_ms: Milliseconds.
        last_seq: The rows of this boot and of those before it age.
        first_offset: The lowest offset that does not age; a multiple of `ZONE_OFFSETS`.
        ahead_ms: UTC minus hub time from now on.
    """

    off_ms: int
    last_seq: int
    first_offset: int
    ahead_ms: int


class Boot:
    """This stretch of hub time, and the earlier ones."""

    def __init__(
        self,
        clock: Clock,
        stored: Sequence[StoredBoot],
        *,
        high_water: int,
        trust: ClockTrust = ClockTrust.AUTO,
        while_off: TtlWhileOff = TtlWhileOff.COUNT,
    ) -> None:
        """Go on from what is stored.

        Args:
            clock: The machine's clocks.
            stored: All boots of the file, oldest first.
            high_water: No offset above it was ever handed out.
            trust: How the wall clock is judged.
            while_off: Whether time counts while the machine (pause: or the hub) is off.
        """
        self._clock = clock
        self._trust = trust
        self._while_off = while_off
        self._off_ms = 0
        boottime_ms = clock.boottime_ms()
        last = stored[-1] if stored else None
        if last is not None and self._goes_on(last, boottime_ms):
            self._past = list(stored[:-1])
            self._current = last
            base_ms = last.hub_ms + boottime_ms - last.boottime_ms
        else:
            self._past = list(stored)
            self._current = self._begin(last, boottime_ms, high_water)
            base_ms = self._current.hub_ms
        self.hub_time = HubTime(clock, base_ms=base_ms, boottime_ms=boottime_ms)
        self._survey()

    def _goes_on(self, last: StoredBoot, boottime_ms: int) -> bool:
        same = last.boot_id == self._clock.boot_id() and boottime_ms >= last.boottime_ms
        return same and self._while_off is TtlWhileOff.COUNT

    def _begin(self, last: StoredBoot | None, boottime_ms: int, high_water: int) -> StoredBoot:
        wall_ms = self._clock.wall_ms()
        # Zones hold rows of one stretch, so that those of earlier ones can age on their own.
        first_offset = -(-(high_water + 1) // ZONE_OFFSETS) * ZONE_OFFSETS if last else 1
        seq, base_ms, trusted = 1, FIRST_HUB_MS, not self._doubt()
        if last is not None:
            seq, base_ms = last.seq + 1, last.hub_ms
            if last.wall_trusted and trusted and self._while_off is TtlWhileOff.COUNT:
                self._off_ms = max(0, wall_ms - last.wall_ms)
                base_ms += self._off_ms
            elif self._known() is not None and self._while_off is TtlWhileOff.COUNT:
                trusted = False  # `check_clock` computes the age of older rows later
        return StoredBoot(
            seq=seq,
            boot_id=self._clock.boot_id(),
            first_hub_ms=base_ms,
            first_wall_ms=wall_ms,
            boottime_ms=boottime_ms,
            hub_ms=base_ms,
            wall_ms=wall_ms,
            high_water=first_offset - 1,
            wall_trusted=int(trusted),
            first_offset=first_offset,
        )

    @property
    def first_offset(self) -> int:
        """The lowest offset that this stretch may use."""
        return self._current.first_offset

    @property
    def first_hub_ms(self) -> int:
        """Hub time at which this stretch began."""
        return self._current.first_hub_ms

    @property
    def trusted(self) -> bool:
        """Whether the wall clock has been found right in this stretch."""
        return bool(self._current.wall_trusted)

    def check_clock(self) -> PowerOff | None:
        """Judge the wall clock again, and use it where it is right.

        Returns:
            Time that the machine was off and that is only known now; it counts, and the clock is
            trusted, once `counted` has been called.
        """
        if self._doubt():
            return None
        ahead_ms = self._clock.wall_ms() - self.hub_time.now_ms()
        if not self._current.wall_trusted:
            known = self._known()
            if known is not None and self._while_off is TtlWhileOff.COUNT:
                off_ms = ahead_ms - known.ahead_ms
                if off_ms > 0:
                    first = next((each for each in self._past if each.seq > known.seq), None)
                    return PowerOff(
                        off_ms=off_ms,
                        last_seq=known.seq,
                        first_offset=(first or self._current).first_offset,
                        ahead_ms=ahead_ms,
                    )
        self._trusted(ahead_ms)
        return None

    def counted(self, power_off: PowerOff) -> None:
        """Apply a power-off that the file now contains: the older rows age by it."""
        self._off_ms += power_off.off_ms
        self._past = self._aged(power_off)
        self._trusted(power_off.ahead_ms)

    def relations(self, power_off: PowerOff | None = None) -> list[list[int]]:
        """Return first hub time and UTC minus hub time of each stretch.

        Args:
            power_off: As they are once this is counted, None = as they are now.
        """
        firsts, aheads, current = self._firsts, self._aheads, self._current
        if power_off is not None:
            current = _set(current, power_off.ahead_ms)
            firsts, aheads = _survey(self._aged(power_off), current)
        return [list(each) for each in zip(firsts, [*aheads, current.ahead_ms], strict=True)]

    def _aged(self, power_off: PowerOff) -> list[StoredBoot]:
        return [
            each._replace(
                first_hub_ms=each.first_hub_ms - power_off.off_ms,
                hub_ms=each.hub_ms - power_off.off_ms,
            )
            if each.seq <= power_off.last_seq
            else each
            for each in self._past
        ]

    def utc_ms(self, hub_ms: int) -> int:
        """Return the best known UTC of a hub time."""
        place = bisect_right(self._firsts, hub_ms) - 1
        if place == len(self._past):
            return hub_ms + self._ahead_now_ms()
        return hub_ms + self._aheads[max(0, place)]

    def record(self, high_water: int, *, trusted_ahead_ms: int | None = None) -> Params:
        """Return the row as of now; `trusted_ahead_ms` = as it is once the clock is trusted."""
        # Boot time first: a moment lost between the two reads must not let hub time go back.
        current = self._current
        boottime_ms, hub_ms = self._clock.boottime_ms(), self.hub_time.now_ms()
        wall_ms, trusted = self._clock.wall_ms(), current.wall_trusted
        if trusted_ahead_ms is not None:
            wall_ms, trusted = hub_ms + trusted_ahead_ms, 1
        elif trusted:
            wall_ms = hub_ms + current.ahead_ms
        return current._replace(
            boottime_ms=boottime_ms,
            hub_ms=hub_ms,
            wall_ms=wall_ms,
            high_water=high_water,
            wall_trusted=trusted,
        )

    def statistics(self, *, ageing: bool) -> ClockStatistics:
        """Return a snapshot."""
        current = self._current
        correction_ms = 0
        if current.wall_trusted:
            correction_ms = current.first_hub_ms + current.ahead_ms - current.first_wall_ms
        reason = "" if current.wall_trusted else self._doubt() or "found right a moment ago"
        return ClockStatistics(
            trusted=self.trusted,
            reason=reason,
            off_s=self._off_ms / 1000,
            correction_s=correction_ms / 1000,
            ageing=ageing,
        )

    def _trusted(self, ahead_ms: int) -> None:
        self._current = _set(self._current, ahead_ms)
        self._survey()

    def _known(self) -> StoredBoot | None:
        """Return the last earlier stretch whose times are known."""
        return next((each for each in reversed(self._past) if each.wall_trusted), None)

    def _doubt(self) -> str:
        """Return why the wall clock cannot be trusted now, empty = it can."""
        wall_ms = self._clock.wall_ms()
        known = self._known()
        if self._trust is ClockTrust.NEVER:
            return "clock.trust is never"
        if not WALL_FLOOR_MS <= wall_ms < WALL_CEILING_MS:
            return "it shows an impossible time"
        if self._trust is ClockTrust.ALWAYS:
            behind = known is not None and wall_ms < known.wall_ms - BEHIND_MAX_MS
            return "it is behind the last known time" if behind else ""
        if self._clock.synchronized():
            return ""
        return "the kernel reports that it has not been synchronised, by NTP for example"

    def _ahead_now_ms(self) -> int:
        current = self._current
        if current.wall_trusted:
            return current.ahead_ms
        wall_ms, known = self._clock.wall_ms(), self._known()
        if known is not None and (wall_ms < known.wall_ms or wall_ms >= WALL_CEILING_MS):
            return known.ahead_ms  # better than 1970: as if the machine had not been off
        return wall_ms - self.hub_time.now_ms()

    def _survey(self) -> None:
        self._firsts, self._aheads = _survey(self._past, self._current)


def _set(current: StoredBoot, ahead_ms: int) -> StoredBoot:
    # Kept as the newest moment at which the clock was right: later steps change nothing.
    return current._replace(
        hub_ms=current.first_hub_ms, wall_ms=current.first_hub_ms + ahead_ms, wall_trusted=1
    )


def _survey(past: Sequence[StoredBoot], current: StoredBoot) -> tuple[list[int], list[int]]:
    """Find where each stretch begins, and for each earlier one the best relation to UTC."""
    aheads: list[int] = []
    later: int | None = current.ahead_ms if current.wall_trusted else None
    known_ms = [WALL_FLOOR_MS]  # last known time before each stretch
    for each in past:
        known_ms.append(max(known_ms[-1], each.wall_ms) if each.wall_trusted else known_ms[-1])
    for each, before_ms in zip(reversed(past), reversed(known_ms[:-1]), strict=True):
        plausible = before_ms <= each.first_hub_ms + each.ahead_ms < WALL_CEILING_MS
        if each.wall_trusted or plausible:
            later = each.ahead_ms
        # A clock that was never set: as if the machine had run until the next known time.
        aheads.append(each.ahead_ms if later is None else later)
    aheads.reverse()
    return [each.first_hub_ms for each in (*past, current)], aheads
