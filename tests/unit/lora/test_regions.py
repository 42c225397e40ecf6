"""Regional plans, against figures that others publish, and what a station is told of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from edgehub.heads.lora.router_config import router_config
from edgehub.lora.regions import AS923_1, AU915, EU868, REGIONS, US915, FixedRegion, required_snr_db


@pytest.mark.parametrize(
    ("region", "dr", "hz", "offset", "rx1"),
    [
        (EU868, 5, 868_100_000, 0, (5, 868_100_000)),
        (EU868, 0, 867_900_000, 3, (0, 867_900_000)),
        (EU868, 4, 868_500_000, 5, (0, 868_500_000)),
        (US915, 0, 902_300_000, 0, (10, 923_300_000)),
        (US915, 3, 903_900_000, 2, (11, 923_300_000)),
        (US915, 0, 914_900_000, 3, (8, 927_500_000)),
        (US915, 4, 904_600_000, 1, (13, 923_900_000)),
        (AU915, 6, 917_500_000, 5, (9, 923_900_000)),
        (AU915, 2, 916_800_000, 0, (10, 923_300_000)),
        (AS923_1, 5, 923_200_000, 7, (5, 923_200_000)),
        (AS923_1, 2, 923_400_000, 6, (3, 923_400_000)),
    ],
)
def test_the_first_window_follows_the_uplink(region, dr, hz, offset, rx1):
    """Data rate and frequency by the tables of the regional parameters."""
    assert region.rx1(dr, hz, offset) == rx1


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_a_concentrator_can_hear_what_it_is_reported(region):
    """Every channel is within reach of its radio, in the band, and given once; data rates exist."""
    regions = (
        [replace(region, sub_band=n) for n in range(1, 9)]
        if isinstance(region, FixedRegion)
        else [region]
    )
    for each in regions:
        config = router_config(each)
        [board] = config["sx1301_conf"]
        radios = [board[f"radio_{n}"]["freq"] for n in (0, 1)]
        heard = []
        for name, channel in board.items():
            if name.startswith("chan") and channel["enable"]:
                reach = 400_000 if channel.get("bandwidth") != 500_000 else 300_000
                assert abs(channel["if"]) <= reach, (each.name, name)
                heard.append(radios[channel["radio"]] + channel["if"])
        low, high = config["freq_range"]
        assert all(low <= hz <= high for hz in heard)
        assert sorted(heard) == sorted(hz for hz, _, _ in config["upchannels"])
        assert len(config["DRs"]) == 16
        for _, slowest, fastest in config["upchannels"]:
            for dr in range(slowest, fastest + 1):
                rate = each.rate(dr)
                assert rate is not None
                assert not rate.is_downlink
                assert each.max_payload(dr) > 0


@pytest.mark.parametrize(
    ("name", "channels", "rx2"),
    [
        ("AS923-2", (921_400_000, 921_600_000), (2, 921_400_000)),
        ("AS923-3", (916_600_000, 916_800_000), (2, 916_600_000)),
        ("AS923-4", (917_300_000, 917_500_000), (2, 917_300_000)),
        ("KR920", (922_100_000, 922_300_000, 922_500_000), (0, 921_900_000)),
    ],
)
def test_plans_have_the_channels_that_others_publish(name, channels, rx2):
    """Default channels and frequency of the second window as ChirpStack has them."""
    region = REGIONS[name]
    assert region.join_channels_hz == channels
    assert (region.rx2_dr, region.rx2_hz) == rx2


def test_the_plan_of_europe_is_the_usual_one():
    """The channels and radios of the packet forwarders that gateways ship with."""
    [board] = router_config(EU868)["sx1301_conf"]
    assert board["chan_multiSF_0"] == {"enable": True, "radio": 1, "if": -400_000}
    assert board["chan_multiSF_3"] == {"enable": True, "radio": 0, "if": -400_000}
    assert board["chan_Lora_std"]["spread_factor"] == 7
    assert board["chan_FSK"] == {"enable": True, "radio": 1, "if": 300_000}


@pytest.mark.parametrize(("dr", "snr"), [(0, -20), (2, -15), (5, -7.5), (7, 0)])
def test_the_slower_a_rate_the_weaker_its_signal_may_be(dr, snr):
    """Reference values of the SX1301."""
    assert required_snr_db(EU868.data_rates[dr]) == snr
