"""What holds wherever devices are kept: in the state file, in Redis, in their twins upstream."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from edgehub.clock import SystemClock
from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.redis_registry import RedisRegistry
from edgehub.devices.source import Activation, Deduplication, DeviceProfile, SessionState
from edgehub.devices.state_registry import SCRIPT, StateRegistry
from edgehub.devices.twin_source import TwinSource
from edgehub.endpoints.device_session import SessionOptions
from edgehub.endpoints.device_sessions import DeviceSessions
from edgehub.hub.devices import Twins
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.storage.state_file import StateFile
from tests.support.device_registry import InProcessRegistry
from tests.support.mosquitto import Mosquitto
from tests.support.redis import RedisServer
from tests.support.twin_responder import TwinResponder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from edgehub.devices.source import DeviceSource, StoredDevice

COMMON = DeviceProfile(device_id="", deduplication=Deduplication.MARK, gap_max=None)
PROFILE = DeviceProfile(
    device_id="d1",
    deduplication=Deduplication.NONE,
    gateway_id="hub-7",
    keep_alive_s=300,
    activation=Activation.ABP,
    relaxed_counters=False,
    gap_max=100,
)
SESSION = SessionState(
    session="s", generation=3, address="0a0b0c0d", f_cnt_up=2**32 - 1, dev_nonces=(1, 65_535)
)
ODD = "a%20b*?!(),:=@$'.c"


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    """One Redis for all tests."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for all tests."""
    with Mosquitto(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


class StatePlace:
    """Devices in the state file."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def source(self, common: DeviceProfile | None) -> DeviceSource:
        """Return another source on the same storage."""
        return StateRegistry(self._file, common=common)

    async def write(self, profile: str, device_id: str = "d1") -> None:
        """Write settings down, as an operator does, or a fault."""
        await self._file.run(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO device VALUES (?, '', ?, '{}')", (device_id, profile)
            )
        )

    async def spoil(self, session: str) -> None:
        """Write what is no session."""
        await self._file.run(
            lambda connection: connection.execute("UPDATE device SET session = ?", (session,))
        )


class RedisPlace:
    """Devices in Redis."""

    def __init__(self, link: RedisLink, prefix: str) -> None:
        self._link = link
        self._prefix = prefix

    def source(self, common: DeviceProfile | None) -> DeviceSource:
        """See `StatePlace`."""
        return RedisRegistry(self._link, prefix=self._prefix, common=common)

    async def write(self, profile: str, device_id: str = "d1") -> None:
        """See `StatePlace`."""
        await self._set(device_id, "profile", profile)

    async def spoil(self, session: str) -> None:
        """See `StatePlace`."""
        await self._set("d1", "session", session)

    async def _set(self, device_id: str, name: str, text: str) -> None:
        await self._link.call("HSET", f"{{{self._prefix}}}:devices:id:{device_id}", name, text)


class OpenedTwins(TwinSource):
    """Opens a device's session for each call and closes it after, as its queue does."""

    def __init__(self, sessions: DeviceSessions, *, common: DeviceProfile) -> None:
        super().__init__(Twins(lambda: sessions), common=common, index=InProcessRegistry())
        self._sessions = sessions

    async def load(self, device_id: str) -> StoredDevice:
        """See `DeviceSource`."""
        await self._sessions.open(device_id)
        try:
            return await super().load(device_id)
        finally:
            await self._sessions.session(device_id).close()

    async def save(self, device_id: str, session: SessionState) -> None:
        """See `DeviceSource`."""
        await self._sessions.open(device_id)
        try:
            await super().save(device_id, session)
        finally:
            await self._sessions.session(device_id).close()


class TwinPlace:
    """Devices in twins, that a responder at a broker keeps."""

    def __init__(self, responder: TwinResponder, port: int, version: int) -> None:
        self.responder = responder
        self.options = SessionOptions(
            host="127.0.0.1", port=port, level=version, connect_timeout_s=5
        )
        self._made: list[DeviceSessions] = []

    def sessions(self) -> DeviceSessions:
        """Return sessions of devices."""
        sessions = DeviceSessions(
            SimpleNamespace(id="upstream"),
            self.options,
            on_behalf=False,
            clock=SystemClock(),
            device_bound=None,
        )
        self._made.append(sessions)
        return sessions

    def source(self, common: DeviceProfile | None) -> DeviceSource:
        """See `StatePlace`."""
        self.responder.knows_all = common is not None
        return OpenedTwins(self.sessions(), common=common or DeviceProfile(device_id=""))

    async def write(self, profile: str, device_id: str = "d1") -> None:
        """See `StatePlace`."""
        self.responder.twin(device_id)["desired"]["edgehub"] = json.loads(profile)

    async def spoil(self, session: str) -> None:
        """See `StatePlace`."""
        self.responder.twin("d1")["reported"]["edgehub"] = json.loads(session)

    def check_closed(self) -> None:
        """See that no session is left."""
        assert sum(sessions.open_sessions() for sessions in self._made) == 0


@pytest.fixture(params=["state", "redis", "twin 3.1.1", "twin 5"])
async def place(request, redis, broker, tmp_path) -> AsyncIterator:
    """Return a place where devices are kept."""
    if request.param == "state":
        file = await StateFile.open(tmp_path / "state.db", [SCRIPT])
        yield StatePlace(file)
        await file.close()
    elif request.param == "redis":
        link = RedisLink(RedisOptions(url=redis.url))
        yield RedisPlace(link, request.node.name)
        await link.close()
    else:
        version = 5 if request.param.endswith("5") else 4
        responder = await asyncio.to_thread(TwinResponder, broker.port)
        place = TwinPlace(responder, broker.port, version)
        yield place
        place.check_closed()
        await asyncio.to_thread(responder.close)


def written(profile: DeviceProfile) -> str:
    """Return all settings as a document."""
    return json.dumps(
        {name: value for name, value in to_builtins(profile).items() if name[:6] != "device"}
    )


async def test_what_is_written_and_saved_is_loaded(place):
    """Settings and session come back as they were, from another object too, and by the id."""
    await place.write(written(PROFILE))
    await place.source(COMMON).save("d1", SESSION)
    stored = await place.source(COMMON).load("d1")
    assert (stored.profile, stored.session) == (PROFILE, SESSION)
    assert await place.source(COMMON).devices_at("d1") == ("d1",)


async def test_a_new_session_replaces_the_one_before(place):
    """Nothing of it is left, though what has its first value is not always written."""
    source = place.source(COMMON)
    await source.save("d1", SESSION)
    begun = SessionState(session="t", generation=4)
    await source.save("d1", begun)
    assert (await place.source(COMMON).load("d1")).session == begun


async def test_an_unknown_device_is_unknown(place):
    """It is neither loaded nor saved."""
    source = place.source(None)
    with pytest.raises(DeviceUnknownError):
        await source.load("d9")
    with pytest.raises(DeviceUnknownError):
        await source.save("d9", SESSION)


async def test_an_unregistered_device_has_the_common_profile(place):
    """Its session is kept all the same, also of one whose id has every character."""
    source = place.source(COMMON)
    assert (await source.load(ODD)).profile == replace(COMMON, device_id=ODD)
    await source.save(ODD, SESSION)
    stored = await place.source(COMMON).load(ODD)
    assert (stored.profile, stored.session) == (replace(COMMON, device_id=ODD), SESSION)


@pytest.mark.parametrize(
    "profile",
    [
        "[]",
        '{"colour": "red"}',
        '{"deduplication": "twice"}',
        '{"keep_alive_s": 5}',
        '{"keep_alive_s": "300"}',
        '{"keep_alive_s": true}',
        '{"gateway_id": 7}',
        '{"gap_max": -1}',
        '{"relaxed_counters": 1}',
    ],
)
async def test_damaged_settings_are_no_half_device(place, profile):
    """It is an error of the source."""
    await place.write(profile)
    with pytest.raises(DeviceSourceError):
        await place.source(COMMON).load("d1")


@pytest.mark.parametrize(
    "session",
    [
        '"s"',
        '{"f_cnt_up": 4294967296}',
        '{"f_cnt_up": -1}',
        '{"f_cnt_up": 1.5}',
        '{"f_cnt_up": "7"}',
        '{"f_cnt_up": true}',
        '{"dev_nonces": 7}',
        '{"dev_nonces": ["7"]}',
        '{"session": null}',
        '{"mood": "good"}',
    ],
)
async def test_a_damaged_session_is_no_half_device(place, session):
    """A counter that is none would let everything through, or nothing."""
    await place.write("{}")
    await place.spoil(session)
    with pytest.raises(DeviceSourceError):
        await place.source(COMMON).load("d1")


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
async def twins(request, broker) -> AsyncIterator[TwinPlace]:
    """Return twins alone."""
    responder = await asyncio.to_thread(TwinResponder, broker.port)
    place = TwinPlace(responder, broker.port, request.param)
    yield place
    place.check_closed()
    await asyncio.to_thread(responder.close)


async def test_a_twin_overrides_the_common_profile_in_part(twins):
    """What it does not say is as the settings have it."""
    await twins.write('{"keep_alive_s": 120}')
    profile = (await twins.source(COMMON).load("d1")).profile
    assert profile == replace(COMMON, device_id="d1", keep_alive_s=120)


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_a_refused_question_is_an_error_of_the_source(twins, status):
    """For both ways, and the next one may be answered."""
    source = twins.source(COMMON)
    twins.responder.status = status
    with pytest.raises(DeviceSourceError, match=str(status)):
        await source.load("d1")
    with pytest.raises(DeviceSourceError, match=str(status)):
        await source.save("d1", SESSION)
    twins.responder.status = None
    await source.load("d1")


async def test_a_silent_peer_is_an_error_of_the_source(twins):
    """After a time; nothing of the question is left."""
    twins.options = replace(twins.options, connect_timeout_s=0.3)
    twins.responder.is_silent = True
    with pytest.raises(DeviceSourceError, match=r"no answer about its twin within 0\.3 s"):
        await twins.source(COMMON).load("d1")


async def test_a_session_that_ends_answers_what_was_asked(twins):
    """At once, not after the time for an answer."""
    twins.responder.is_silent = True
    sessions = twins.sessions()
    source = TwinSource(Twins(lambda: sessions), common=COMMON, index=InProcessRegistry())
    with pytest.raises(DeviceSourceError, match="the session is not open"):
        await source.load("d1")
    await sessions.open("d1")
    async with asyncio.timeout(4), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(_error_of(source.load("d1")))
        await asyncio.sleep(0)
        # Somebody else signs in as the device.
        other = twins.sessions()
        await other.open("d1")
    assert "the session ended" in asking.result()
    await other.session("d1").close()


async def test_answers_to_others_are_not_taken(twins):
    """Many ask at once, over their own sessions; each gets its own twin, at a broker for all."""
    for number in range(20):
        await twins.write(json.dumps({"gateway_id": f"hub-{number}"}), f"d{number}")
    source = twins.source(COMMON)
    async with asyncio.timeout(10):
        loaded = await asyncio.gather(*(source.load(f"d{number}") for number in range(20)))
    assert [stored.profile.gateway_id for stored in loaded] == [f"hub-{n}" for n in range(20)]


async def _error_of(question) -> str:
    with pytest.raises(DeviceSourceError) as caught:
        await question
    return str(caught.value)
