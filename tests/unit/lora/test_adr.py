"""Adaptive data rate, against the cases of the rule that it follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.lora.adr import SAMPLES_MAX, AdrHistory, RadioSettings
from edgehub.lora.regions import EU868, US915

MARGIN = 10.0


def history(*snrs: float, power: int = 0, step: int = 1) -> AdrHistory:
    """Return a history with these signals."""
    found = AdrHistory()
    for number, snr in enumerate(snrs):
        found.add(number * step, snr, power)
    return found


@pytest.mark.parametrize(
    ("dr", "power", "snr", "wanted"),
    [
        (0, 0, -10.0, (0, 0)),  # as it should be
        (0, 0, -7.0, (1, 0)),  # one step
        (0, 0, 5.0, (5, 0)),  # five steps, all of the data rate
        (0, 0, 8.0, (5, 1)),  # the sixth is one of power
        (5, 0, 9.0, (5, 2)),
        (5, 7, 30.0, (5, 7)),  # no less power than the least
        (3, 2, -12.5, (3, 2)),  # weak, but only once
    ],
)
def test_the_margin_becomes_data_rate_first_and_power_then(dr, power, snr, wanted):
    """Each step is 3 dB above the margin."""
    found = history(snr, power=power).wanted(EU868, RadioSettings(dr, power), MARGIN)
    assert found == RadioSettings(*wanted)


def test_power_is_raised_after_twenty_weak_frames_alone():
    """And the data rate is left to the device."""
    now = RadioSettings(3, 4)
    few = history(*[-8.0] * 19, power=4)
    assert few.wanted(EU868, now, MARGIN) == now
    many = history(*[-8.0] * 20, power=4)
    assert many.wanted(EU868, now, MARGIN) == RadioSettings(3, 3)
    mixed = history(*[-8.0] * 19, power=4)
    mixed.add(19, -8.0, 3)
    assert mixed.wanted(EU868, now, MARGIN) == now


@pytest.mark.parametrize(("step", "before", "after"), [(1, 1, 1), (1, 3, 2), (2, 1, 3), (2, 2, 3)])
def test_lost_frames_are_sent_more_often(step, before, after):
    """With every second frame lost three times, and less often again later."""
    found = history(*[0.0] * SAMPLES_MAX, step=step)
    assert found.lost() == pytest.approx(0 if step == 1 else 19 / 39)
    assert found.wanted(EU868, RadioSettings(5, 0, before), MARGIN).nb_trans == after


def test_a_device_that_started_again_begins_anew():
    """Counters before it say nothing of losses; a repetition is no sample."""
    found = history(*[20.0] * SAMPLES_MAX)
    found.add(SAMPLES_MAX - 1, 30.0, 0)
    assert len(found.samples) == SAMPLES_MAX
    found.add(0, -10.0, 0)
    assert len(found.samples) == 1


@given(
    st.lists(st.floats(-25, 15), min_size=1, max_size=25),
    st.sampled_from([EU868, US915]),
    st.integers(0, 15),
    st.integers(0, 14),
)
def test_what_is_wanted_exists(snrs, region, dr, power):
    """Data rate and power are of the plan; asked for again, nothing changes for the same signal."""
    now = RadioSettings(dr, min(power, region.power_index_max))
    found = history(*snrs, power=now.power).wanted(region, now, MARGIN)
    if found.dr != now.dr:
        assert now.dr < found.dr <= region.up_dr_max
    assert 0 <= found.power <= region.power_index_max
    assert 1 <= found.nb_trans <= 3
