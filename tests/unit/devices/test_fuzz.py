"""Documents of devices in registries and twins: read whole, or refused."""

from __future__ import annotations

import orjson
from hypothesis import given
from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.registry_form import read_device, write_profile, write_session
from edgehub.devices.source import DeviceProfile, SessionState
from edgehub.devices.twin_source import TwinSource
from tests.support.fuzzing import JSON_PIECES, bounded, fuzzer, hostile

PROFILE = DeviceProfile(device_id="d")
PROFILES = [
    write_profile(PROFILE).encode(),
    b'{"deduplication":"mark","preferred":["g1","g2"],"delay_ms":100}',
    orjson.dumps(
        {name: getattr(PROFILE, name) for name in PROFILE.__slots__ if name != "device_id"}
    ),
]
SESSIONS = [
    write_session(SessionState()).encode(),
    write_session(replace(SessionState(), generation=7)).encode(),
    b"{}",
]
PIECES = [*JSON_PIECES, str(2**32).encode(), *PROFILES, *SESSIONS]


@fuzzer
@given(hostile(PROFILES, PIECES), hostile(SESSIONS, PIECES))
def test_damaged_documents_are_a_device_or_refused(profile, session):
    """What was read is written so that it is read the same, and never half a device."""
    stored = bounded(lambda: read_device("d", profile, session), DeviceSourceError)
    if isinstance(stored, DeviceSourceError):
        assert stored.device_id == "d"
        return
    again = read_device("d", write_profile(stored.profile), write_session(stored.session))
    assert again == stored


class Twins:
    """Has one twin for all devices."""

    def __init__(self, status: int, text: bytes) -> None:
        self._twin = status, text

    async def read(self, device_id: str) -> tuple[int, bytes]:
        """See `TwinAccess`."""
        del device_id
        return self._twin

    async def report(self, device_id: str, patch: bytes) -> int:
        """See `TwinAccess`."""
        del device_id, patch
        return self._twin[0]


DEV_EUI = "70B3D57ED0000001"
TWINS = [
    b'{"desired":{"edgehub":{"deduplication":"mark"},"$version":1},"reported":{"edgehub":{"f_cnt_up":7}}}',
    b'{"desired":{},"reported":{}}',
    (
        b'{"desired":{"AppKey":"000102030405060708090a0b0c0d0e0f","GatewayID":"","KeepAliveTimeout":60,'
        b'"Deduplication":"Drop"},"reported":{"DevAddr":"01","NwkSKey":"00","AppSKey":"00","FCntUp":1}}'
    ),
]


class EmptyIndex:
    """Takes what it is given, and finds nothing."""

    async def load(self, device_id: str) -> None:
        """Find nothing."""
        raise DeviceUnknownError(device_id, "it is not here")

    async def put(self, _profile: object) -> None:
        """Take a device."""

    async def save(self, _device_id: str, _session: object) -> None:
        """Take its address."""


@fuzzer
@given(hostile(TWINS, JSON_PIECES))
def test_a_damaged_twin_is_a_device_or_refused(text):
    """Whatever stands beside the member that belongs to the hub."""

    def load() -> object:
        loading = TwinSource(Twins(200, text), common=PROFILE, index=EmptyIndex()).load(DEV_EUI)
        try:
            loading.send(None)
        except StopIteration as loaded:
            return loaded.value
        raise AssertionError("a twin that is there needs no waiting")

    stored = bounded(load, DeviceSourceError)
    assert isinstance(stored, DeviceSourceError) or stored.profile.device_id == DEV_EUI
