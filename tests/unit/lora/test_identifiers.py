"""EUIs, addresses and ids of stations in all forms that people and stations write."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgehub.lora.identifiers import (
    dashed_eui,
    dev_addr_of,
    eui_text,
    id6_text,
    parse_eui,
    parse_station_id,
)

EUI = st.integers(0, 2**64 - 1)


@given(EUI)
@example(0)
@example(0xFF)
@example(0xFFFF_0000_0000_0000)
@example(0x0001_0000_0000_0001)
def test_every_form_of_an_eui_is_read(eui):
    """Plain, dashed, with colons, as four groups and as a number, in either case."""
    assert parse_eui(eui_text(eui)) == eui
    for text in (dashed_eui(eui), dashed_eui(eui).replace("-", ":").lower(), id6_text(eui)):
        assert parse_station_id(text) == eui
    assert parse_station_id(eui - 2**64 if eui >> 63 else eui) == eui


@pytest.mark.parametrize(
    "text",
    ["", "::1::", "1:2:3", "1:2:3:4:5", "1:2:3::4", "12345", "70B3-D57ED0000001", None, True],
)
def test_what_is_no_id_of_a_station_is_refused(text):
    """Text of another form, a flag, and nothing."""
    with pytest.raises(ValueError, match="want a number of 64 bits"):
        parse_station_id(text)


@pytest.mark.parametrize(
    ("net_id", "number", "dev_addr"),
    [
        (0x000013, 0x1FFFFFF, 0x27FFFFFF),
        (0x000013, 0, 0x26000000),
        (0x600013, 5, 0xE0260005),
    ],
)
def test_an_address_has_the_prefix_of_its_network(net_id, number, dev_addr):
    """Type 0 and type 3, as the networks with these ids use them."""
    assert dev_addr_of(net_id, number) == dev_addr
