"""Which frame counters a hub accepts before it asks the coordinator.

Pure function on 32-bit counters. Sources: LoRaWAN 1.0.2 section 4.3.1.5 (MAX_FCNT_GAP); the relaxed
restart of ABP devices is what network servers offer for devices that forget their counters.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from edgehub.devices.source import Activation, DeviceProfile

REPEATS_MAX: Final = 3
RESTART_MAX: Final = 1
"""A device that starts again sends 0, some send 1."""


class CounterCheck(StrEnum):
    """What the counter of a frame means."""

    NEW = "new"
    RESTARTED = "restarted"  # the device may have forgotten its counter
    REPEATED = "repeated"  # confirmed, and sent again
    INVALID = "invalid"
    REPEATED_TOO_OFTEN = "repeated_too_often"


def check_counter(
    f_cnt: int,
    last: int,
    profile: DeviceProfile,
    *,
    confirmed: bool,
    heard: bool,
    copied: bool,
    repeats: int,
    is_loser: bool,
) -> CounterCheck:
    """Check a counter against what this hub knows.

    Args:
        f_cnt: The frame's counter.
        last: The last counter that was processed, 0 also where none was.
        profile: The device's settings.
        confirmed: Whether the device wants an answer.
        heard: Whether this hub processed a frame with `last` itself.
        copied: Whether this hub heard the very same frame within the last minute.
        repeats: How often that frame was answered again.
        is_loser: Another hub owns the device, so this one's counters may be old: too large a
            gap, and a restart that the other hub heard, are left to the coordinator.
    """
    may_restart = profile.activation is Activation.ABP and profile.relaxed_counters
    if may_restart and f_cnt <= RESTART_MAX and not (copied and f_cnt == last):
        return CounterCheck.RESTARTED
    if f_cnt == last:
        if f_cnt == 0 and not heard:
            return CounterCheck.NEW
        if not confirmed:
            return CounterCheck.INVALID
        return CounterCheck.REPEATED if repeats < REPEATS_MAX else CounterCheck.REPEATED_TOO_OFTEN
    if is_loser and (f_cnt > last or may_restart):
        return CounterCheck.NEW
    is_near = profile.gap_max is None or f_cnt <= last + profile.gap_max
    return CounterCheck.NEW if last < f_cnt and is_near else CounterCheck.INVALID
