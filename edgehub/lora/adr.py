"""Adaptive data rate: which data rate, power and number of transmissions a device should have.

Pure; the rule is that of ChirpStack, which follows Semtech's recommendation for network servers.
Invariant: nothing is asked of a device that it has already.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

from edgehub.lora.regions import required_snr_db

if TYPE_CHECKING:
    from edgehub.lora.regions import Region

SAMPLES_MAX: Final = 20
STEP_DB: Final = 3.0
_NB_TRANS: Final = ((1, 1, 2), (1, 2, 3), (2, 3, 3), (3, 3, 3))
"""By the share of lost frames, and by the number of transmissions until now."""
_LOSSES: Final = (0.05, 0.10, 0.30)


class RadioSettings(NamedTuple):
    """How a device sends.

    Attributes:
        dr: Data rate.
        power: Power index, 0 is the most.
        nb_trans: How often it sends each unconfirmed frame.
    """

    dr: int
    power: int = 0
    nb_trans: int = 1


class _Sample(NamedTuple):
    f_cnt: int
    snr: float
    power: int


class AdrHistory(Struct, eq=False):
    """The last frames of a device in its session."""

    samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def add(self, f_cnt: int, snr: float, power: int) -> None:
        """Record a frame with the best signal that a station had."""
        if self.samples and f_cnt <= self.samples[-1].f_cnt:
            if f_cnt == self.samples[-1].f_cnt:
                return
            self.samples.clear()  # the device has started again
        self.samples.append(_Sample(f_cnt, snr, power))

    def lost(self) -> float:
        """Return the share of frames that were lost, 0 as long as few are known."""
        if len(self.samples) < SAMPLES_MAX:
            return 0.0
        sent = self.samples[-1].f_cnt - self.samples[0].f_cnt + 1
        return 1 - len(self.samples) / sent

    def wanted(self, region: Region, now: RadioSettings, margin_db: float) -> RadioSettings:
        """Return the settings that a device should have.

        Args:
            region: Its plan.
            now: Its settings.
            margin_db: What the signal keeps above the least.
        """
        rate = region.rate(now.dr)
        if not self.samples or rate is None or not rate.sf or now.dr > region.up_dr_max:
            return now
        best = max(sample.snr for sample in self.samples)
        steps = int((best - required_snr_db(rate) - margin_db) / STEP_DB)
        nb_trans = self._nb_trans(now.nb_trans)
        alike = sum(sample.power == now.power for sample in self.samples)
        if steps < 0:
            # A few weak frames are no reason.
            power = max(now.power + steps, 0) if alike == SAMPLES_MAX else now.power
            return RadioSettings(now.dr, power, nb_trans)
        dr = min(now.dr + steps, region.up_dr_max)
        power = min(now.power + steps - (dr - now.dr), region.power_index_max)
        return RadioSettings(dr, power, nb_trans)

    def _nb_trans(self, now: int) -> int:
        row = sum(self.lost() >= limit for limit in _LOSSES)
        return _NB_TRANS[row][min(max(now, 1), 3) - 1]
