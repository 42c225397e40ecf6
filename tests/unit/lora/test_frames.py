"""LoRaWAN frames: what is built is parsed the same, and junk is refused and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.heads.lora.station_messages import data_message, phy_payload_of
from edgehub.lora.frames import (
    DataFrame,
    Direction,
    FrameError,
    JoinRequestFrame,
    MType,
    RejoinRequestFrame,
    mhdr_of,
    parse_frame,
)
from edgehub.lora.mac_commands import MacCommand, parse_mac_commands

DATA_TYPES = (
    MType.UNCONFIRMED_DATA_UP,
    MType.UNCONFIRMED_DATA_DOWN,
    MType.CONFIRMED_DATA_UP,
    MType.CONFIRMED_DATA_DOWN,
)
MIC = st.binary(min_size=4, max_size=4)
EUI = st.integers(0, 2**64 - 1)
U16 = st.integers(0, 2**16 - 1)


@st.composite
def data_frames(draw):
    """Draw any data frame."""
    f_port = draw(st.none() | st.integers(0, 255))
    return DataFrame(
        mhdr=mhdr_of(draw(st.sampled_from(DATA_TYPES))) | draw(st.integers(0, 7)) << 2,
        dev_addr=draw(st.integers(0, 2**32 - 1)),
        f_ctrl=draw(st.integers(0, 15)) << 4,
        f_cnt=draw(U16),
        f_opts=b"" if f_port == 0 else draw(st.binary(max_size=15)),
        f_port=f_port,
        frm_payload=b"" if f_port is None else draw(st.binary(max_size=222)),
        mic=draw(MIC),
    )


@given(data_frames())
def test_a_data_frame_is_parsed_as_it_was_built(frame):
    """Members and bytes agree, reserved bits included, also by way of a station's JSON."""
    assert parse_frame(frame.build()) == frame
    assert phy_payload_of(data_message(frame)) == frame.build()


@given(
    st.builds(JoinRequestFrame, join_eui=EUI, dev_eui=EUI, dev_nonce=U16, mic=MIC)
    | st.builds(
        RejoinRequestFrame,
        rejoin_type=st.sampled_from([0, 2]),
        home=st.integers(0, 2**24 - 1),
        dev_eui=EUI,
        rj_count=U16,
        mic=MIC,
    )
    | st.builds(
        RejoinRequestFrame, rejoin_type=st.just(1), home=EUI, dev_eui=EUI, rj_count=U16, mic=MIC
    )
)
def test_a_request_is_parsed_as_it_was_built(frame):
    """Join and rejoin requests come back as they were."""
    assert parse_frame(frame.build()) == frame


@given(st.binary(max_size=300))
def test_junk_is_refused_or_built_again(junk):
    """Bytes are no frame, or the frame has exactly these bytes."""
    try:
        frame = parse_frame(junk)
    except FrameError:
        return
    assert frame.build() == junk


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "MHdr",
                "JoinEui",
                "DevEui",
                "DevNonce",
                "DevAddr",
                "FCtrl",
                "FCnt",
                "FOpts",
                "FPort",
                "FRMPayload",
                "MIC",
            ]
        ),
        st.none() | st.integers(-(2**40), 2**40) | st.text(max_size=24) | st.booleans(),
    ),
    st.sampled_from(["jreq", "updf", "propdf", "rejoin", "dndf"]),
)
def test_members_that_make_no_frame_are_refused(members, kind):
    """A station's JSON gives bytes or one kind of error."""
    try:
        phy_payload_of({"msgtype": kind, **members})
    except FrameError:
        return


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"f_opts": bytes(16)}, "FOpts has 16 bytes"),
        ({"f_opts": b"\x02", "f_port": 0}, "exclude"),
        ({"frm_payload": b"x"}, "needs a FPort"),
        ({"f_port": 1, "frm_payload": bytes(243)}, "at most 255"),
    ],
)
def test_a_frame_that_cannot_exist_is_not_built(changes, fault):
    """Members that exclude each other, or that are too long, are refused."""
    frame = DataFrame(mhdr=mhdr_of(MType.UNCONFIRMED_DATA_DOWN), dev_addr=1, f_cnt=1, **changes)
    with pytest.raises(FrameError, match=fault):
        frame.build()


@given(st.binary(max_size=60), st.sampled_from(Direction))
def test_mac_commands_are_read_up_to_what_is_unknown(junk, direction):
    """What was read and what was not are the whole; reserved bits alone may differ."""
    commands, rest = parse_mac_commands(junk, direction)
    built = b"".join(command.build() for command in commands)
    assert len(built) + len(rest) == len(junk)
    assert junk.endswith(rest)
    assert parse_mac_commands(built, direction) == (commands, b"")


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (MacCommand(name="LinkADR"), "no MAC command"),
        (MacCommand(name="DutyCycleReq"), "max_duty_cycle"),
        (MacCommand(name="DutyCycleReq", values={"max_duty_cycle": 16}), "16 is no"),
        (MacCommand(name="BeaconFreqReq", values={"frequency_hz": 869_525_050}), "is no frequency"),
        (MacCommand(name="DevStatusAns", values={"battery": 1, "margin": 32}), "32 is no margin"),
    ],
)
def test_a_mac_command_that_cannot_exist_is_not_built(command, fault):
    """Unknown names, missing members and values without room are refused by name."""
    with pytest.raises(FrameError, match=fault):
        command.build()
