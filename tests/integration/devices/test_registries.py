"""What holds for every registry of devices: in memory, in the state file, in Redis."""

import pytest
from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.redis_registry import RedisRegistry
from edgehub.devices.source import Activation, Deduplication, DeviceProfile, SessionState
from edgehub.devices.state_registry import SCRIPT, StateRegistry
from edgehub.lora.device import LorawanProfile, LorawanSession, MacVersion
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.storage.state_file import StateFile
from tests.support.redis import RedisServer

COMMON = DeviceProfile(device_id="", deduplication=Deduplication.MARK, gap_max=None)
PROFILE = DeviceProfile(
    device_id="d1",
    deduplication=Deduplication.NONE,
    gateway_id="hub-7",
    keep_alive_s=300,
    activation=Activation.ABP,
    relaxed_counters=False,
    gap_max=None,
    lora=LorawanProfile(
        name="pump", mac_version=MacVersion.V1_1, app_key="01" * 16, nwk_key="02" * 16
    ),
)
SESSION = SessionState(
    session="s",
    generation=3,
    address="0a0b0c0d",
    f_cnt_up=2**32 - 1,
    dev_nonces=(1, 65_535),
    lora=LorawanSession(
        is_1_1=True,
        f_nwk_s_int_key="03" * 16,
        s_nwk_s_int_key="04" * 16,
        nwk_s_enc_key="05" * 16,
        app_s_key="06" * 16,
        f_cnt_down=2**32 - 1,
        rx_delay=5,
        rx2_hz=869_525_000,
    ),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One Redis for all tests."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(params=["state", "redis"])
async def make(request, server, tmp_path):
    """Make a registry; each call gives another object on the same storage."""
    if request.param == "state":
        file = await StateFile.open(tmp_path / "state.db", [SCRIPT])
        yield lambda common=None: StateRegistry(file, common=common)
        await file.close()
        return
    link = RedisLink(RedisOptions(url=server.url))
    prefix = request.node.name
    yield lambda common=None: RedisRegistry(link, prefix=prefix, common=common)
    await link.close()


async def test_what_is_put_and_saved_is_loaded(make):
    """Profile and session come back as they were, by id and by address, from another object too."""
    registry = make()
    await registry.put(PROFILE)
    await registry.save("d1", SESSION)
    stored = await make().load("d1")
    assert (stored.profile, stored.session) == (PROFILE, SESSION)
    assert await make().devices_at("0a0b0c0d") == ("d1",)
    assert await make().devices_at("d1") == ("d1",)


async def test_an_unknown_device_is_unknown(make):
    """It is neither loaded nor saved, and no address leads to it."""
    registry = make()
    assert await registry.devices_at("d9") == ()
    with pytest.raises(DeviceUnknownError):
        await registry.load("d9")
    with pytest.raises(DeviceUnknownError):
        await registry.save("d9", SESSION)
    assert not await registry.remove("d9")


async def test_an_unregistered_device_has_the_common_profile(make):
    """Its session is kept all the same, and another common profile counts from then on."""
    registry = make(COMMON)
    assert await registry.devices_at("d2") == ("d2",)
    assert (await registry.load("d2")).profile == replace(COMMON, device_id="d2")
    await registry.save("d2", SESSION)
    other = replace(COMMON, deduplication=Deduplication.DROP)
    stored = await make(other).load("d2")
    assert (stored.profile, stored.session) == (replace(other, device_id="d2"), SESSION)


async def test_a_device_moves_to_another_address(make):
    """The old address leads to those that still have it."""
    registry = make(COMMON)
    for name in ("d1", "d2"):
        await registry.save(name, SESSION)
    await registry.save("d1", replace(SESSION, address="ffffffff"))
    assert await registry.devices_at("0a0b0c0d") == ("d2",)
    assert await registry.devices_at("ffffffff") == ("d1",)


async def test_a_removed_device_is_gone(make):
    """Profile, session and address."""
    registry = make()
    await registry.put(PROFILE)
    await registry.save("d1", SESSION)
    assert await registry.remove("d1")
    assert await registry.devices_at("0a0b0c0d") == ()
    with pytest.raises(DeviceUnknownError):
        await registry.load("d1")


async def test_devices_are_read_in_pages(make):
    """By their ids, each once."""
    registry = make(COMMON)
    names = [f"d{number:02}" for number in range(25)]
    for name in reversed(names):
        await registry.save(name, SessionState(f_cnt_up=1))
    seen: list[str] = []
    while page := await registry.page(seen[-1] if seen else "", 10):
        seen += [stored.profile.device_id for stored in page]
    assert seen == names


async def test_a_server_that_is_away_is_an_error_of_the_source(tmp_path):
    """For every operation."""
    server = RedisServer(tmp_path)
    link = RedisLink(RedisOptions(url=server.url, connect_timeout_s=0.5))
    registry = RedisRegistry(link, prefix="p", common=COMMON)
    for operation in (
        registry.devices_at("d"),
        registry.load("d"),
        registry.save("d", SESSION),
        registry.put(PROFILE),
        registry.page("", 5),
    ):
        with pytest.raises(DeviceSourceError):
            await operation
    await link.close()
