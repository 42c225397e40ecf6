"""How the hub signs in at a parent hub: with signatures, and as each of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import Clock, ManualClock, SystemClock
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.server_tls import read_server_tls
from edgehub.endpoints.device_session import DeviceSession, SessionEnd, SessionError, SessionOptions
from edgehub.endpoints.mqtt_link import SharedAccess
from edgehub.endpoints.renewal import CHECK_S, REASON
from edgehub.mqtt.shared_access import SharedAccessKey
from edgehub.storage.credentials import TlsOptions
from tests.support.certificates import Authority
from tests.support.memory_queue import a_row
from tests.support.mqtt_listener import running
from tests.support.mqtt_peer import mqtt_peer
from tests.support.quick_clock import QuickClock
from tests.support.route_tables import until
from tests.support.uplink import CLIENT_ID, uplink

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

KEY = SharedAccessKey(bytes(range(32)))


def written(folder: Path, *entries: Identity) -> Path:
    """Write an identities file."""
    with changing(folder / "identities") as identities:
        identities.update({entry.id: entry for entry in entries})
    return folder / "identities"


def key_file(folder: Path, name: str, key: SharedAccessKey = KEY) -> Path:
    """Write a key."""
    file = folder / f"{name}.key"
    file.write_text(key.to_text() + "\n")
    return file


async def test_a_signature_is_renewed(tmp_path) -> None:
    """The hub connects again before it ends; rows are confirmed before that, none comes twice."""
    identities = written(tmp_path, Identity(id=CLIENT_ID, keys=(KEY,), on_behalf=("*",)))
    access = SharedAccess(
        file=key_file(tmp_path, "hub"), setting="shared_access_key_file", lasts_s=60
    )
    clock = QuickClock(100)
    async with (
        running(identities_file=identities, anonymous=False, clock=clock) as parent,
        uplink(parent.port, username=CLIENT_ID, shared_access=access, clock=clock) as up,
    ):
        queue = up.queue()
        bodies: list[bytes] = []
        while parent.listener.statistics().accepted_total < 4:
            bodies.append(b"%d" % len(bodies))
            queue.put(a_row(len(bodies), body=bodies[-1]))
            await up.until(lambda: len(queue.confirmed) == len(bodies))
        assert [m.body for m in parent.router.messages] == bodies
        assert "expired" not in parent.ended()
        assert parent.listener.statistics().refused_connects == {}


async def test_what_is_in_flight_at_a_renewal(tmp_path) -> None:
    """It is confirmed first; later rows go over the next connection, which follows at once."""
    access = SharedAccess(
        file=key_file(tmp_path, "hub"), setting="shared_access_key_file", lasts_s=60
    )
    clock = ManualClock()
    async with (
        mqtt_peer() as peer,
        uplink(
            peer.port,
            username=CLIENT_ID,
            shared_access=access,
            clock=clock,
            ack_timeout_s=1000,
            keep_alive_s=1000,
        ) as up,
    ):
        peer.acknowledge = False
        queue = up.queue()
        queue.put(a_row(1, body=b"1"))
        await peer.until(lambda: peer.published == [b"1"])
        await clock.advance(49)
        queue.put(a_row(2, body=b"2"))
        await up.until(lambda: up.pump.statistics().in_flight_rows == 2)
        assert (peer.connects, peer.published) == (1, [b"1"])
        peer.acknowledge = True
        peer.confirm()
        await up.until(lambda: queue.confirmed == [1])
        await clock.advance(CHECK_S)
        await peer.until(lambda: peer.connects == 2)
        await up.until(lambda: queue.confirmed == [1, 2])
        assert peer.published == [b"1", b"2"]


async def test_a_wrong_key_is_parked(tmp_path) -> None:
    """As a wrong password is; a corrected file is read at the next attempt."""
    identities = written(tmp_path, Identity(id=CLIENT_ID, keys=(KEY,), on_behalf=("*",)))
    file = key_file(tmp_path, "hub", SharedAccessKey(bytes(32)))
    access = SharedAccess(file=file, setting="shared_access_key_file", lasts_s=60)
    async with (
        running(identities_file=identities, anonymous=False) as parent,
        uplink(parent.port, username=CLIENT_ID, shared_access=access) as up,
    ):
        await up.until(lambda: up.endpoint.state == "parked")
        key_file(tmp_path, "hub")
        up.endpoint.retry_now()
        await up.until(lambda: up.endpoint.state == "up")


def session(
    options: SessionOptions, device: str, clock: Clock | None = None, ends: list | None = None
) -> DeviceSession:
    """Make a session of a device."""

    def ended(_device: str, end: SessionEnd, reason: str) -> None:
        if ends is not None:
            ends.append((end, reason))

    return DeviceSession(device, options, clock=clock or SystemClock(), ended=ended)


def access(folder: Path, lasts_s: int) -> SharedAccess:
    """Return signatures by keys of devices."""
    setting = "device_shared_access_key_file"
    return SharedAccess(file=folder / "{device}.key", setting=setting, lasts_s=lasts_s)


async def test_a_key_of_each_device(tmp_path) -> None:
    """Each device signs in with its own, and not with that of another."""
    other = SharedAccessKey(bytes(32))
    identities = written(tmp_path, Identity(id="d1", keys=(KEY,)), Identity(id="d2", keys=(other,)))
    for name in ("d1", "d2"):
        key_file(tmp_path, name)
    async with running(identities_file=identities, anonymous=False) as parent:
        options = SessionOptions(
            host="127.0.0.1",
            port=parent.port,
            username="h.azure-devices.net/{device}/?api-version=2021-04-12",
            shared_access=access(tmp_path, 3600),
        )
        first = session(options, "d1")
        await first.open()
        assert parent.client_ids() == ["d1"]
        with pytest.raises(SessionError):
            await session(options, "d2").open()
        with pytest.raises(SessionError, match="device_shared_access_key_file"):
            await session(options, "d3").open()
        await first.close()


async def test_a_signature_of_a_device_is_renewed(tmp_path) -> None:
    """Its session ends in time, as one that is lost, and is opened again when it is needed."""
    identities = written(tmp_path, Identity(id="d1", keys=(KEY,)))
    key_file(tmp_path, "d1")
    clock, ends = ManualClock(), []
    async with running(identities_file=identities, anonymous=False, clock=clock) as parent:
        options = SessionOptions(
            host="127.0.0.1",
            port=parent.port,
            username="{device}",
            shared_access=access(tmp_path, 60),
            keep_alive_s=3600,
        )
        device = session(options, "d1", clock, ends)
        for _ in range(2):
            await device.open()
            await clock.advance(47)
            assert device.is_open
            await clock.advance(1)
            await until(lambda: device.is_idle)
        assert ends == [(SessionEnd.LOST, REASON)] * 2


async def test_a_certificate_of_each_device(tmp_path) -> None:
    """Each device shows its own."""
    authority = Authority(tmp_path)
    for name in ("d1", "d2"):
        authority.client(name)
    identities = written(tmp_path, Identity(id="d1"), Identity(id="d2"), Identity(id="d3"))
    tls = read_server_tls("mqtt", *authority.server(), authority.certificate).context
    async with running(identities_file=identities, anonymous=False, tls=tls) as parent:
        options = SessionOptions(
            host="localhost",
            port=parent.tls_port,
            tls=TlsOptions(
                ca_file=authority.certificate,
                certificate_file=tmp_path / "{device}.pem",
                key_file=tmp_path / "{device}.key",
            ),
        )
        sessions = [session(options, name) for name in ("d1", "d2")]
        for each in sessions:
            await each.open()
        assert sorted(parent.client_ids()) == ["d1", "d2"]
        with pytest.raises(SessionError, match=r"d3\.pem"):
            await session(options, "d3").open()
        for each in sessions:
            await each.close()
