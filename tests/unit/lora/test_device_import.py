"""Lists of LoRaWAN devices: the forms that others write, and every fault with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.lora.device import DeviceClass, LorawanSession, MacVersion
from edgehub.lora.device_import import DeviceListError, parse_devices

KEYS = [f"{n:02x}" * 16 for n in range(6)]
TTS: dict[str, Any] = {
    "ids": {"device_id": "pump-1", "dev_eui": "70B3D57ED0000001", "join_eui": "0000000000000001"},
    "lorawan_version": "MAC_V1_0_2",
    "supports_class_c": True,
    "root_keys": {"app_key": {"key": KEYS[0]}},
    "session": {
        "dev_addr": "260B1F4E",
        "keys": {"f_nwk_s_int_key": {"key": KEYS[1]}, "app_s_key": {"key": KEYS[2]}},
        "last_f_cnt_up": 70_000,
        "last_n_f_cnt_down": 12,
    },
}
CHIRPSTACK: dict[str, Any] = {
    "device": {"devEui": "70b3d57ed0000002", "joinEui": "0000000000000001", "name": "tank"},
    "deviceProfile": {"macVersion": "LORAWAN_1_0_4", "supportsClassC": False},
    "deviceKeys": {"nwkKey": KEYS[3], "appKey": "0" * 32},
}


def test_an_export_of_the_things_stack_keeps_session_and_counters() -> None:
    """One document behind the other, as its command line writes them."""
    other = {**TTS, "ids": {**TTS["ids"], "dev_eui": "70B3D57ED0000009"}}
    one, two = parse_devices(json.dumps(TTS) + "\n" + json.dumps(other))
    assert (one.dev_eui, two.dev_eui) == ("70B3D57ED0000001", "70B3D57ED0000009")
    assert one.profile.mac_version is MacVersion.V1_0_2
    assert one.profile.device_class is DeviceClass.C
    assert one.profile.app_key == KEYS[0]
    assert (one.dev_addr, one.f_cnt_up) == ("260B1F4E", 70_000)
    assert one.session == LorawanSession(
        f_nwk_s_int_key=KEYS[1],
        s_nwk_s_int_key=KEYS[1],
        nwk_s_enc_key=KEYS[1],
        app_s_key=KEYS[2],
        f_cnt_down=12,
    )


def test_chirpstack_has_the_root_key_of_1_0_under_another_name() -> None:
    """Its `nwkKey` is the AppKey there; in 1.1 both are what they are called."""
    newer = {
        **CHIRPSTACK,
        "device": {"devEui": "70b3d57ed0000003"},
        "deviceProfile": {"macVersion": "LORAWAN_1_1_0"},
        "deviceKeys": {"nwkKey": KEYS[3], "appKey": KEYS[4]},
    }
    old, new = parse_devices(json.dumps([CHIRPSTACK, newer]))
    assert (old.profile.app_key, old.profile.nwk_key) == (KEYS[3], "")
    assert old.profile.mac_version is MacVersion.V1_0_4
    assert (new.profile.app_key, new.profile.nwk_key) == (KEYS[4], KEYS[3])


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_table_has_any_of_the_columns_in_any_order(separator: str) -> None:
    """Unknown columns are left alone; an empty cell is as none."""
    rows = [
        ["remark", "app_key", "DEV_EUI", "dev_addr", "nwk_s_key", "app_s_key", "lorawan_version"],
        ["cellar", KEYS[0], "70-B3-D5-7E-D0-00-00-01", "", "", "", "MAC_V1_0_4"],
        ["", "", "70B3D57ED0000002", "26000001", KEYS[1], KEYS[2], ""],
    ]
    one, two = parse_devices("\ufeff" + "\r\n".join(separator.join(row) for row in rows))
    assert (one.joins, one.profile.mac_version) == (True, MacVersion.V1_0_4)
    assert not two.joins
    assert (two.dev_eui, two.dev_addr) == ("70B3D57ED0000002", "26000001")


def test_every_fault_of_a_table_has_its_line() -> None:
    """All are found at once, and no key is printed."""
    text = "\n".join(
        [
            "dev_eui,app_key,dev_addr,mac_version,nwk_key",
            f"70B3D57ED000000,{KEYS[0]},,,",
            "70B3D57ED0000001,secretsecret,,,",
            "70B3D57ED0000002,,,,",
            "70B3D57ED0000003,,26000001,,",
            f"70B3D57ED0000004,{KEYS[0]},,1.2,",
            f"70B3D57ED0000005,{KEYS[0]},,1.1,",
            f"70B3D57ED0000006,{KEYS[0]},,,{KEYS[1]}",
            f"70B3D57ED0000007,{KEYS[0]},,,",
            f"70b3d57ed0000007,{KEYS[0]},,,",
        ]
    )
    with pytest.raises(DeviceListError) as refused:
        parse_devices(text)
    wanted = [
        "line 2: `dev_eui`: want 16 hex digits",
        "line 3: `app_key`: want 32 hex digits, it has 12 characters",
        "line 4: a device needs `app_key` to join",
        "line 5: `dev_addr` without `nwk_s_key`",
        "line 6: `mac_version`: want one of",
        "line 7: a device of 1.1 joins with both",
        "line 8: `nwk_key` is a key of 1.1",
        "line 10: 70B3D57ED0000007 is there twice",
    ]
    for found, want in zip(refused.value.faults, wanted, strict=True):
        assert found.startswith(want)
    assert "secretsecret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "want a heading"),
        ("dev_eui\n", "no device in it"),
        ("name,app_key\n", "want a heading with `dev_eui`"),
        ("[", "no JSON"),
        ("[1]", "want an object"),
        ("{}", "neither `ids`"),
        ("[]", "no device in it"),
    ],
)
def test_what_is_no_list_is_refused(text: str, fault: str) -> None:
    """Neither a table nor a document of a known form."""
    with pytest.raises(DeviceListError, match=fault):
        parse_devices(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ids", "device", "dev_eui", "devEui", "session", "keys", "key"]), inner
        )
    ),
    max_leaves=9,
)


@given(JSON.map(json.dumps) | st.text(max_size=80))
def test_junk_is_refused_and_nothing_else(text: str) -> None:
    """Whatever the text, the answer is devices or faults."""
    try:
        found = parse_devices(text)
    except DeviceListError:
        return
    assert found
