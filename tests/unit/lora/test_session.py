"""Frames within a session: the right counter is found, nothing else is taken, all comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgehub.lora.device import LorawanSession
from edgehub.lora.frames import F_OPTS_MAX, DataFrame, MType, mhdr_of, parse_frame
from edgehub.lora.mac_commands import MacCommand
from edgehub.lora.session import UplinkRate, build_frame, find_counter, open_frame

UP = mhdr_of(MType.UNCONFIRMED_DATA_UP)
DOWN = mhdr_of(MType.CONFIRMED_DATA_DOWN)
RATE = UplinkRate(5, 2)
SESSION = LorawanSession(
    f_nwk_s_int_key="01" * 16,
    s_nwk_s_int_key="01" * 16,
    nwk_s_enc_key="01" * 16,
    app_s_key="04" * 16,
)
SESSION_1_1 = LorawanSession(
    is_1_1=True,
    f_nwk_s_int_key="01" * 16,
    s_nwk_s_int_key="02" * 16,
    nwk_s_enc_key="03" * 16,
    app_s_key="04" * 16,
)
SESSIONS = st.sampled_from([SESSION, SESSION_1_1])
COUNTERS = st.integers(0, 2**32 - 1)
CHECK = MacCommand(name="LinkCheckReq")


def uplink(session: LorawanSession, f_cnt: int, **members) -> DataFrame:
    """Return an uplink as it is parsed."""
    given_ = {"f_port": 1, "frm_payload": b"payload", **members}
    frame = DataFrame(mhdr=UP, dev_addr=7, f_cnt=f_cnt & 0xFFFF, **given_)
    parsed = parse_frame(build_frame(session, frame, f_cnt, RATE))
    assert isinstance(parsed, DataFrame)
    return parsed


@given(SESSIONS, COUNTERS, st.integers(0, 65_535))
def test_the_counter_of_a_new_frame_is_found(session, f_cnt, missed):
    """However many of 65 535 were missed, and whatever the upper half is."""
    frame = uplink(session, f_cnt)
    assert find_counter(session, frame, max(f_cnt - missed, 0), RATE) == f_cnt


@given(SESSIONS, st.integers(0, 2**31), st.integers(1, 40_000))
def test_an_old_frame_is_known_for_what_it_is(session, f_cnt, newer):
    """Within its turn of 65 536 its own counter is found, which is below the last one."""
    frame = uplink(session, f_cnt)
    last = f_cnt + newer
    found = find_counter(session, frame, last, RATE)
    if last >> 16 == f_cnt >> 16 or f_cnt < 2**16:
        assert found == f_cnt
    else:
        assert found in (None, f_cnt)


@given(SESSIONS, COUNTERS, st.integers(0, 30), st.integers(0, 7))
def test_a_changed_bit_is_noticed(session, f_cnt, place, bit):
    """Anywhere in the frame."""
    raw = bytearray(uplink(session, f_cnt).build())
    place %= len(raw)
    raw[place] ^= 1 << bit
    try:
        frame = parse_frame(bytes(raw))
    except ValueError:
        return
    if isinstance(frame, DataFrame):
        assert find_counter(session, frame, f_cnt, RATE) is None


def test_the_mic_of_1_1_covers_data_rate_and_channel():
    """A frame that is said to have come on another channel is none."""
    frame = uplink(SESSION_1_1, 9)
    assert find_counter(SESSION_1_1, frame, 9, RATE) == 9
    assert find_counter(SESSION_1_1, frame, 9, UplinkRate(5, 3)) is None
    assert find_counter(SESSION, uplink(SESSION, 9), 9, UplinkRate(5, 3)) == 9


@given(SESSIONS, COUNTERS, st.binary(max_size=200), st.integers(1, 223), st.integers(0, 20))
def test_what_was_built_is_read(session, f_cnt, payload, f_port, commands):
    """Both ways; MAC commands that do not fit into the header become the payload of port 0."""
    options = CHECK.build() * commands
    fits = len(options) <= F_OPTS_MAX
    frame = DataFrame(
        mhdr=UP,
        dev_addr=7,
        f_cnt=f_cnt & 0xFFFF,
        f_opts=options,
        f_port=f_port if fits else None,
        frm_payload=payload if fits else b"",
    )
    parsed = parse_frame(build_frame(session, frame, f_cnt, RATE))
    assert isinstance(parsed, DataFrame)
    plain = open_frame(session, parsed, f_cnt)
    assert plain.commands == [CHECK] * commands
    assert plain.payload == (payload if fits else b"")
    assert parsed.f_port == (f_port if fits else 0)
    if session.is_1_1 and fits and options:
        assert parsed.f_opts != options


@given(SESSIONS, COUNTERS, st.binary(min_size=9, max_size=60))
def test_a_payload_on_air_shows_nothing(session, f_cnt, payload):
    """Nor does the same payload look the same with another counter."""
    frame = DataFrame(mhdr=DOWN, dev_addr=7, f_cnt=f_cnt & 0xFFFF, f_port=3, frm_payload=payload)
    one = build_frame(session, frame, f_cnt)
    other = build_frame(session, replace(frame, f_cnt=frame.f_cnt ^ 1), f_cnt ^ 1)
    assert payload not in one
    assert one[9:-4] != other[9:-4]
