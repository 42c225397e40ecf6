"""`router_config`: what a station learns of its region, its channels and its radios.

Pure function. Two radios of a concentrator take channels of up to 0.4 MHz from their centre.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.lora.regions import FixedRegion

if TYPE_CHECKING:
    from edgehub.lora.regions import Region

_UNDEFINED: Final = [-1, 0, 0]


def router_config(region: Region) -> dict[str, Any]:
    """Return the message for a station of a region."""
    radios, wide_hz = region.radios_hz, region.wide_hz
    narrow_dr_max = region.up_dr_max
    if isinstance(region, FixedRegion):
        first = region.up_channels_hz[0]
        radios = (first + 400_000, first + 1_100_000)
        wide_hz = region.wide_first_hz + 1_600_000 * (region.sub_band - 1)
        narrow_dr_max = region.narrow_dr_max
    up = [[hz, 0, narrow_dr_max] for hz in region.up_channels_hz]
    board: dict[str, Any] = {
        f"radio_{number}": {"enable": True, "freq": hz} for number, hz in enumerate(radios)
    }
    for number in range(8):
        channels = region.up_channels_hz
        board[f"chan_multiSF_{number}"] = (
            _channel(radios, channels[number]) if number < len(channels) else {"enable": False}
        )
    board["chan_Lora_std"] = board["chan_FSK"] = {"enable": False}
    if wide_hz is not None:
        rate = region.data_rates[region.wide_dr]
        assert rate is not None, region.name
        wide = {"bandwidth": 1000 * rate.bw_khz, "spread_factor": rate.sf}
        board["chan_Lora_std"] = {**_channel(radios, wide_hz), **wide}
        up.append([wide_hz, region.wide_dr, region.wide_dr])
    if region.fsk_hz is not None:
        board["chan_FSK"] = _channel(radios, region.fsk_hz)
        up.append([region.fsk_hz, 7, 7])
    return {
        "msgtype": "router_config",
        "NetID": None,
        "JoinEui": None,
        "region": region.station_name,
        "hwspec": "sx1301/1",
        "freq_range": list(region.range_hz),
        "DRs": [
            _UNDEFINED if rate is None else [rate.sf, rate.bw_khz, int(rate.is_downlink)]
            for rate in region.data_rates
        ],
        "upchannels": up,
        "sx1301_conf": [board],
    }


def _channel(radios: tuple[int, int], hz: int) -> dict[str, Any]:
    radio = min((0, 1), key=lambda number: abs(hz - radios[number]))
    return {"enable": True, "radio": radio, "if": hz - radios[radio]}
