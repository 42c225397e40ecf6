"""LoRaWAN cryptography beyond the vectors: it is its own inverse, and each input counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgehub.lora import crypto
from edgehub.lora.channels import masks_72
from edgehub.lora.counters import full_counter
from edgehub.lora.frames import Direction, JoinAcceptFields

KEY = st.binary(min_size=16, max_size=16)
U32 = st.integers(0, 2**32 - 1)
CHANNELS = st.sets(st.integers(0, 71))


def test_cmac_is_that_of_its_specification() -> None:
    """RFC 4493 section 4, example 3."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    message = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411"
    )
    assert crypto.cmac(key, message).hex() == "dfa66747de9ae63030ca32611497c827"


@given(KEY, st.binary(max_size=242), st.sampled_from(Direction), U32, U32)
def test_a_payload_comes_back_with_the_same_counter_alone(key, payload, direction, address, f_cnt):
    """Encrypting twice restores it; the upper half of the counter counts."""
    text = crypto.crypt_payload(key, payload, direction, address, f_cnt)
    assert crypto.crypt_payload(key, text, direction, address, f_cnt) == payload
    if len(payload) > 8:
        other = f_cnt ^ 0x10000
        assert crypto.crypt_payload(key, text, direction, address, other) != payload


@given(KEY, U32, st.sampled_from([b"", bytes(16)]))
def test_an_accept_is_opened_by_its_device(key, dev_addr, cf_list):
    """Sealing and opening are inverse, with and without channels."""
    fields = JoinAcceptFields(app_nonce=1, net_id=2, dev_addr=dev_addr, cf_list=cf_list)
    mic = crypto.accept_mic(key, 0x20, fields.build())
    sealed = crypto.seal_accept(key, fields.build(), mic)
    assert crypto.open_accept(key, sealed) == (fields, mic)


@given(st.integers(0, 2**31))
def test_a_counter_is_found_within_one_turn(f_cnt):
    """The low half suffices for all counters that follow within 65 536."""
    for following in (f_cnt, max(f_cnt - 16_384, 0), max(f_cnt - 65_535, 0)):
        assert full_counter(f_cnt & 0xFFFF, following) == f_cnt


@given(CHANNELS, CHANNELS)
def test_masks_leave_exactly_the_wanted_channels(device, wanted):
    """A device that applies them in order has these channels and no others."""
    channels = set(device)
    for cntl, mask in masks_72(device, wanted):
        if cntl == 7:
            channels = set()
        first = 64 if cntl == 7 else cntl * 16
        group = set(range(first, min(first + 16, 72)))
        channels = channels - group | {c for c in group if mask >> c - first & 1}
    assert channels == wanted
