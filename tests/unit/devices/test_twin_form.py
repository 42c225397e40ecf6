"""LoRaWAN devices as the starter kit writes them into twins."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError
from edgehub.devices.source import Activation, Deduplication, DeviceProfile, SessionState
from edgehub.devices.twin_form import profile_of, read_desired, report_of, session_of
from edgehub.lora.device import DeviceClass, MacVersion

DEV_EUI = "70B3D57ED0000001"
COMMON = DeviceProfile(device_id=DEV_EUI, keep_alive_s=60)
JOINS = {"AppKey": "00" * 16, "AppEUI": "0000000000000007"}
ABP = {"DevAddr": "26000001", "NwkSKey": "0A" * 16, "AppSKey": "0B" * 16, "FCntUpStart": 3}


def read(desired: dict[str, Any], **reported: Any) -> tuple[DeviceProfile, SessionState]:
    """Return profile and session of a device that no hub has reported of."""
    device = read_desired(DEV_EUI, desired)
    assert device is not None
    return profile_of(device, desired, COMMON), session_of(device, reported, SessionState())


def test_a_device_that_joins_has_a_root_key():
    """What others have written into the twin disturbs nothing."""
    profile, session = read(
        {
            **JOINS,
            "ClassType": "C",
            "GatewayID": "hub-7",
            "Deduplication": "Mark",
            "KeepAliveTimeout": 300,
            "SensorDecoder": "http://x",
            "Decoder": "em500",
            "$version": 4,
        }
    )
    assert (profile.activation, profile.gateway_id) == (Activation.OTAA, "hub-7")
    assert (profile.deduplication, profile.keep_alive_s) == (Deduplication.MARK, 300)
    assert profile.lora is not None
    assert profile.lora.device_class is DeviceClass.C
    assert profile.lora.decoder == "em500"
    assert profile.lora.join_eui == "0000000000000007"
    assert session == SessionState()


def test_what_is_no_lorawan_device_is_left_alone():
    """Its twin has no key."""
    assert read_desired("pump", {"AppKey": "", "DevAddr": "26000001"}) is None


@pytest.mark.parametrize("relaxed", [False, "false", "False"])
def test_a_personalised_device_has_its_session_in_the_twin(relaxed):
    """Its counters begin where the operator says, and no counter is relaxed against his will."""
    profile, session = read({**ABP, "ABPRelaxMode": relaxed, "MacVersion": "1.0.4"})
    assert (profile.activation, profile.relaxed_counters) == (Activation.ABP, False)
    assert profile.gap_max is None
    assert profile.lora is not None
    assert profile.lora.mac_version is MacVersion.V1_0_4
    assert (session.address, session.f_cnt_up, session.generation) == ("/26000001", 3, 0)


def test_counters_are_kept_until_the_session_is_another_one():
    """Other keys, or another reset, begin a new one, which no older counter disturbs."""
    _, first = read(ABP)
    counted = replace(first, f_cnt_up=90)
    for changes, generation in (
        ({}, 0),
        ({"FCntResetCounter": 1}, 1),
        ({"AppSKey": "0C" * 16}, 1),
    ):
        device = read_desired(DEV_EUI, {**ABP, **changes})
        assert device is not None
        session = session_of(device, {}, counted)
        assert session.generation == generation
        assert session.f_cnt_up == (3 if changes else 90)


def test_a_session_of_the_kit_goes_on():
    """It writes downlink counters now and then, so what may have been used is left out."""
    reported = {key: ABP[key] for key in ("DevAddr", "NwkSKey", "AppSKey")}
    _, session = read(JOINS, **reported, FCntUp=41, FCntDown=7, DevNonce=513)
    assert (session.address, session.f_cnt_up, session.dev_nonces) == ("/26000001", 41, (513,))
    assert session.lora is not None
    assert session.lora.f_cnt_down == 17
    written = report_of(session)
    assert written == {**reported, "FCntUp": 41, "FCntDown": 17, "DevNonce": 513}
    device = read_desired(DEV_EUI, JOINS)
    assert device is not None
    assert session_of(device, written, session) == session, "what a hub has reported is newer"


@pytest.mark.parametrize(
    ("desired", "text"),
    [
        ({"AppKey": "12"}, "`desired.AppKey`"),
        ({**JOINS, "ClassType": "B"}, "`desired.ClassType`"),
        ({**ABP, "DevAddr": ""}, "`desired.DevAddr`"),
        ({**JOINS, "Deduplication": "Twice"}, "want Drop, Mark or None"),
        ({**JOINS, "KeepAliveTimeout": 5}, "between 0 and 60"),
        ({**JOINS, "KeepAliveTimeout": []}, "want whole seconds"),
    ],
)
def test_what_is_wrong_is_named(desired, text):
    """By the name that the operator has written."""
    with pytest.raises(DeviceSourceError, match=text):
        read(desired)
