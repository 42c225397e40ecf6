"""Regional parameters: channels, data rates, receive windows, power and payload sizes as data.

Pure data and functions. Source: LoRaWAN Regional Parameters RP002-1.0.4, sections 2.4 (EU868), 2.5
(US915), 2.8 (AU915) and 2.10 (AS923); tables without a repeater.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

JOIN_ACCEPT_DELAY_S: Final = 5
RX2_AFTER_S: Final = 1
"""The second window opens so much after the first, of joins as of data."""

_SUB_BAND_CHANNELS: Final = 8


class DataRate(NamedTuple):
    """A modulation.

    Attributes:
        sf: Spreading factor, 0 = FSK of 50 kbit/s.
        bw_khz: Bandwidth.
        is_downlink: Only downlinks have it.
    """

    sf: int
    bw_khz: int
    is_downlink: bool = False

    @property
    def name(self) -> str:
        """Return its usual notation, such as `SF7BW125`."""
        return f"SF{self.sf}BW{self.bw_khz}" if self.sf else "FSK50"


class Region(Struct, frozen=True, kw_only=True):
    """One regional plan.

    Attributes:
        name: As it is configured.
        station_name: As stations know it.
        range_hz: Lowest and highest frequency.
        data_rates: By their index, None = undefined.
        join_channels_hz: Channels of every device of a plan with free channels.
        more_channels_hz: Channels that a join accept adds to these.
        radios_hz: Centres of a concentrator's two radios that cover all of them.
        wide_hz: Channel of a concentrator's single receiver for `wide_dr`, None = none.
        wide_dr: Data rate there.
        fsk_hz: Channel of its FSK receiver, None = none.
        rx1_dr: Data rates of RX1: by that of the uplink, by the offset.
        rx2_dr: Data rate of RX2.
        rx2_hz: Frequency of RX2.
        power_index_max: Largest power index; each is 2 dB less than the one before.
        payload_max: Largest application payload by data rate.
        up_dr_max: Best uplink data rate that ADR uses.
    """

    name: str
    station_name: str
    range_hz: tuple[int, int]
    data_rates: tuple[DataRate | None, ...]
    join_channels_hz: tuple[int, ...] = ()
    more_channels_hz: tuple[int, ...] = ()
    radios_hz: tuple[int, int] = (0, 0)
    wide_hz: int | None = None
    wide_dr: int = 0
    fsk_hz: int | None = None
    rx1_dr: tuple[tuple[int, ...], ...]
    rx2_dr: int
    rx2_hz: int
    power_index_max: int
    payload_max: tuple[int, ...]
    up_dr_max: int = 5

    @property
    def up_channels_hz(self) -> tuple[int, ...]:
        """Return the uplink channels of a concentrator, 125 kHz each."""
        return (*self.join_channels_hz, *self.more_channels_hz)

    def rate(self, dr: int) -> DataRate | None:
        """Return a data rate, None = it is undefined."""
        return self.data_rates[dr] if 0 <= dr < len(self.data_rates) else None

    def rx1(self, dr: int, hz: int, offset: int) -> tuple[int, int]:
        """Return data rate and frequency of RX1 after an uplink of the plan."""
        row = self.rx1_dr[dr]
        return row[min(offset, len(row) - 1)], self.rx1_hz(hz)

    def rx1_hz(self, hz: int) -> int:
        """Return the frequency of RX1 after an uplink."""
        return hz

    def channel_of(self, hz: int) -> int:
        """Return the number of an uplink channel; one that no join accept names counts as 0."""
        channels = self.up_channels_hz
        return channels.index(hz) if hz in channels else 0

    def max_payload(self, dr: int) -> int:
        """Return the largest application payload without MAC commands."""
        return self.payload_max[dr] if dr < len(self.payload_max) else 0


class FixedRegion(Region, frozen=True, kw_only=True):
    """A plan with 64 channels of 125 kHz, 8 of 500 kHz, and 8 for downlinks.

    Attributes:
        sub_band: Which eight of the 64 channels stations hear, 1 to 8.
        narrow_hz: First channel of 125 kHz; the others follow each 200 kHz.
        wide_first_hz: First channel of 500 kHz; the others follow each 1.6 MHz.
        down_hz: First downlink channel; the others follow each 600 kHz.
        narrow_dr_max: Best data rate of 125 kHz.
    """

    sub_band: int = 2
    narrow_hz: int
    wide_first_hz: int
    down_hz: int
    narrow_dr_max: int

    @property
    def channels(self) -> tuple[int, ...]:
        """Return the numbers of the channels that stations hear, the wide one last."""
        first = (self.sub_band - 1) * _SUB_BAND_CHANNELS
        return (*range(first, first + _SUB_BAND_CHANNELS), 64 + self.sub_band - 1)

    @property
    def up_channels_hz(self) -> tuple[int, ...]:
        """Return the channels of 125 kHz of the sub-band."""
        return tuple(self.narrow_hz + 200_000 * number for number in self.channels[:-1])

    def rx1_hz(self, hz: int) -> int:
        """Return the downlink channel that belongs to an uplink channel."""
        return self.down_hz + 600_000 * (self.channel_of(hz) % _SUB_BAND_CHANNELS)

    def channel_of(self, hz: int) -> int:
        """Return the number of an uplink channel, from 64 on those of 500 kHz."""
        number, rest = divmod(hz - self.narrow_hz, 200_000)
        return 64 + (hz - self.wide_first_hz) // 1_600_000 if rest else number


def required_snr_db(rate: DataRate) -> float:
    """Return the least SNR with which a data rate is received (Semtech SX1301 datasheet)."""
    return -20.0 + 2.5 * (12 - rate.sf) if rate.sf else 0.0


def _less(offsets: int, up_drs: int, floor: int = 0) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(max(floor, dr - offset) for offset in range(offsets)) for dr in range(up_drs)
    )


def _padded(rates: Sequence[DataRate | None]) -> tuple[DataRate | None, ...]:
    return (*rates, *[None] * (16 - len(rates)))


_SF12_TO_7: Final = tuple(DataRate(sf, 125) for sf in range(12, 6, -1))
_EU_RATES: Final = _padded((*_SF12_TO_7, DataRate(7, 250), DataRate(0, 0)))
_WIDE_DOWN: Final = tuple(DataRate(sf, 500, is_downlink=True) for sf in range(12, 6, -1))
_EU_PAYLOADS: Final = (51, 51, 51, 115, 242, 242, 242, 242)

EU868: Final = Region(
    name="EU868",
    station_name="EU868",
    range_hz=(863_000_000, 870_000_000),
    data_rates=_EU_RATES,
    join_channels_hz=(868_100_000, 868_300_000, 868_500_000),
    more_channels_hz=(867_100_000, 867_300_000, 867_500_000, 867_700_000, 867_900_000),
    radios_hz=(867_500_000, 868_500_000),
    wide_hz=868_300_000,
    wide_dr=6,
    fsk_hz=868_800_000,
    rx1_dr=_less(6, 8),
    rx2_dr=0,
    rx2_hz=869_525_000,
    power_index_max=7,
    payload_max=_EU_PAYLOADS,
)

_AS_ROWS: Final = tuple(
    (*row, min(5, dr + 1), min(5, dr + 2)) for dr, row in enumerate(_less(6, 8))
)
AS923_1: Final = Region(
    name="AS923-1",
    station_name="AS923-1",
    range_hz=(915_000_000, 928_000_000),
    data_rates=_EU_RATES,
    join_channels_hz=(923_200_000, 923_400_000),
    more_channels_hz=(922_200_000, 922_400_000, 922_600_000, 922_800_000, 923_000_000),
    radios_hz=(922_400_000, 923_200_000),
    rx1_dr=_AS_ROWS,
    rx2_dr=2,
    rx2_hz=923_200_000,
    power_index_max=7,
    payload_max=(51, 51, 115, 115, 242, 242, 242, 242),
)


def _as923(number: int, offset_hz: int, range_hz: tuple[int, int]) -> Region:
    """Return a group of AS923: its two channels are those of the first group, moved.

    Sources, by figure. Channels and frequency of RX2: AS923_FREQ_OFFSET of RP002; ChirpStack's
    `region_as923_2.toml` and `_3.toml` of 2026, and RadioLib's `LoRaWANBands.cpp` for all groups.
    RX2 at DR2, payloads, power steps: `as_923_rp2_v1_0_4.go` of The Things Stack, which has the
    same for all groups (ChirpStack's file of group 2 has DR0). Ranges: RP002 for group 2 (920 to
    923 MHz, quoted in issue 6625 of The Things Stack), RadioLib for group 4; that of group 3 lies
    within RadioLib's 915 to 928 MHz and was compared with nothing closer. The five further channels
    are ours: the plan leaves them to the operator.
    """
    first = AS923_1.join_channels_hz[0] + offset_hz
    return replace(
        AS923_1,
        name=f"AS923-{number}",
        range_hz=range_hz,
        join_channels_hz=(first, first + 200_000),
        more_channels_hz=tuple(first + 200_000 * step for step in range(2, 7)),
        radios_hz=(first + 400_000, first + 1_000_000),
        rx2_hz=first,
    )


AS923_2: Final = _as923(2, -1_800_000, (920_000_000, 923_000_000))
AS923_3: Final = _as923(3, -6_600_000, (915_000_000, 921_000_000))
AS923_4: Final = _as923(4, -5_900_000, (917_000_000, 920_000_000))

# Sources, by figure. Channels, RX2, payloads, power steps, offsets of RX1: `kr920.rs` of ChirpStack
# (2026) and `kr_920_923_rp2_v1_0_4.go` of The Things Stack. Range: RadioLib's `LoRaWANBands.cpp`.
# The four further channels are ours: the plan leaves them to the operator.
KR920: Final = Region(
    name="KR920",
    station_name="KR920",
    range_hz=(920_900_000, 923_300_000),
    data_rates=_padded(_SF12_TO_7),
    join_channels_hz=(922_100_000, 922_300_000, 922_500_000),
    more_channels_hz=(922_700_000, 922_900_000, 923_100_000, 923_300_000),
    radios_hz=(922_400_000, 923_100_000),
    rx1_dr=_less(6, 6),
    rx2_dr=0,
    rx2_hz=921_900_000,
    power_index_max=7,
    payload_max=(51, 51, 51, 115, 242, 242),
)

US915: Final = FixedRegion(
    name="US915",
    station_name="US915",
    range_hz=(902_000_000, 928_000_000),
    data_rates=_padded(
        (
            *(DataRate(sf, 125) for sf in range(10, 6, -1)),
            DataRate(8, 500),
            None,
            None,
            None,
            *_WIDE_DOWN,
        )
    ),
    narrow_hz=902_300_000,
    wide_first_hz=903_000_000,
    down_hz=923_300_000,
    narrow_dr_max=3,
    wide_dr=4,
    rx1_dr=((10, 9, 8, 8), (11, 10, 9, 8), (12, 11, 10, 9), (13, 12, 11, 10), (13, 13, 12, 11)),
    rx2_dr=8,
    rx2_hz=923_300_000,
    power_index_max=14,
    payload_max=(11, 53, 125, 242, 242, 0, 0, 0, 53, 129, 242, 242, 242, 242),
    up_dr_max=3,
)

AU915: Final = FixedRegion(
    name="AU915",
    station_name="AU915",
    range_hz=(915_000_000, 928_000_000),
    data_rates=_padded((*_SF12_TO_7, DataRate(8, 500), None, *_WIDE_DOWN)),
    narrow_hz=915_200_000,
    wide_first_hz=915_900_000,
    down_hz=923_300_000,
    narrow_dr_max=5,
    wide_dr=6,
    rx1_dr=(
        (8, 8, 8, 8, 8, 8),
        (9, 8, 8, 8, 8, 8),
        (10, 9, 8, 8, 8, 8),
        (11, 10, 9, 8, 8, 8),
        (12, 11, 10, 9, 8, 8),
        (13, 12, 11, 10, 9, 8),
        (13, 13, 12, 11, 10, 9),
    ),
    rx2_dr=8,
    rx2_hz=923_300_000,
    power_index_max=14,
    payload_max=(51, 51, 51, 115, 242, 242, 242, 0, 53, 129, 242, 242, 242, 242),
)

REGIONS: Final[dict[str, Region]] = {
    region.name: region
    for region in (EU868, US915, AU915, AS923_1, AS923_2, AS923_3, AS923_4, KR920)
}


def region_of(name: str, sub_band: int) -> Region:
    """Return a plan of `REGIONS`; of one with fixed channels, stations hear those of a sub-band."""
    region = REGIONS[name]
    return replace(region, sub_band=sub_band) if isinstance(region, FixedRegion) else region
