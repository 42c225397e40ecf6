"""Bounds that clients of the listener share: anonymous ones keep no identity out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mqtt5
import pytest

from edgehub.devices.identities import IdentityList, read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.heads.mqtt.local import presence, space
from tests.support.mqtt5_client import Client5
from tests.support.mqtt_listener import MemorySessions, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

HASH = PasswordHash.of(b"secret")
STORED = {"clean_start": False, "session_expiry_interval": 0xFFFFFFFF}
QUOTA = 0x97


@pytest.fixture
def identities_file(tmp_path: Path) -> Path:
    """Identities id1 to id9, password `secret`."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as identities:
        for number in range(1, 10):
            identities[f"id{number}"] = Identity(id=f"id{number}", password=HASH)
    return path


def password_of(client_id: str) -> dict[str, object]:
    """Return what a client signs in with: those of the identities file have a password."""
    return {"password": b"secret"} if client_id.startswith("id") else {}


async def signed_in(bench: Bench, client_id: str, **options: object) -> Client5:
    """Sign a client in."""
    return await Client5.signed_in(bench.port, client_id, **password_of(client_id), **options)


async def code_of(bench: Bench, client_id: str, **options: object) -> int:
    """Sign a client in and out again; returns the reason code of the CONNACK."""
    client = await Client5.open(bench.port)
    code = (await client.connect(client_id, **password_of(client_id), **options)).reason_code
    await leave(client)
    return int(code)


async def leave(client: Client5) -> None:
    """Disconnect, and wait until the hub has noticed."""
    client.send(mqtt5.DisconnectPacket())
    assert await client.raw.closed()
    await client.close()


async def retain(client: Client5, topic: str, body: bytes = b"x") -> int:
    """Publish a retained message; returns the reason code of the PUBACK."""
    client.publish(topic, body, retain=True)
    ((_, code),) = await client.codes(1)
    return code


def bound(bench: Bench, name: str) -> dict[str, int]:
    """Return the counts of the bound whose name begins so."""
    (found,) = [each for each in bench.listener.statistics().bounds if each.name.startswith(name)]
    return {"used": found.used, "anonymous": found.anonymous}


async def test_anonymous_clients_get_half_of_the_connections(identities_file: Path) -> None:
    """Half of the clients may be anonymous; identities find room for the rest, and no more."""
    async with running(identities_file=identities_file, clients_max=4) as bench:
        inside = [await signed_in(bench, each) for each in ("a1", "a2")]
        assert await code_of(bench, "a3") == QUOTA
        inside += [await signed_in(bench, each) for each in ("id1", "id2")]
        assert await code_of(bench, "id3") == QUOTA
        for each in inside:
            await each.close()


async def test_without_identities_anonymous_clients_get_all() -> None:
    """Where there is no identity to protect, a bound is for anonymous clients alone."""
    async with running(clients_max=2, local_retained_max=2) as bench:
        first, second = [await signed_in(bench, each) for each in ("a1", "a2")]
        assert await retain(first, "te/1") == 0
        assert await retain(first, "te/2") == 0
        assert await retain(second, "te/3") == QUOTA
        for each in (first, second):
            await each.close()


async def test_the_longest_absent_anonymous_session_gives_way(identities_file: Path) -> None:
    """At the half of anonymous clients the longest absent of them goes, also after a restart."""
    sessions = MemorySessions()
    options = {"identities_file": identities_file, "sessions": sessions, "stored_sessions_max": 6}
    async with running(**options) as bench:
        clients = [await signed_in(bench, each, **STORED) for each in ("a1", "a2", "a3")]
        for client in (clients[1], clients[0]):
            await leave(client)
        assert await code_of(bench, "a4", **STORED) == 0
        await bench.sessions.settled()
        assert set(sessions.table) == {"a1", "a3", "a4"}
        for number in (1, 2, 3):
            assert await code_of(bench, f"id{number}", **STORED) == 0
        assert await code_of(bench, "id4", **STORED) == 0
        await bench.sessions.settled()
        assert set(sessions.table) == {"a3", "a4", "id1", "id2", "id3", "id4"}
        assert bench.listener.statistics().sessions_evicted_total == 2
        await leave(clients[2])
        await bench.sessions.settled()
    sessions.absent_s = {"a3": 10.0, "a4": 20.0, "id1": 90.0}
    async with running(**options) as bench:
        assert await code_of(bench, "id5", **STORED) == 0
        await bench.sessions.settled()
        assert set(sessions.table) == {"a3", "id1", "id2", "id3", "id4", "id5"}


async def test_sessions_of_connected_clients_and_of_identities_stay(identities_file: Path) -> None:
    """Where no absent anonymous session is left to give way, a further one is refused."""
    options = {"identities_file": identities_file, "stored_sessions_max": 2}
    async with running(**options) as bench:
        client = await signed_in(bench, "a1", **STORED)
        assert await code_of(bench, "a2", **STORED) == QUOTA
        assert await code_of(bench, "a2") == 0
        assert await code_of(bench, "id1", **STORED) == 0
        assert await code_of(bench, "id2", **STORED) == QUOTA
        await client.close()


async def test_anonymous_clients_get_half_of_the_retained_messages(identities_file: Path) -> None:
    """By number, changes of what is there left alone; also after a restart."""
    local = None
    for _ in range(2):
        async with running(
            identities_file=identities_file,
            local=local,
            local_retained_max=4,
        ) as bench:
            local = bench.local
            anonymous, known = [await signed_in(bench, each) for each in ("a1", "id1")]
            assert await retain(anonymous, "te/1") == 0
            assert await retain(anonymous, "te/2") == 0
            assert await retain(anonymous, "te/3") == QUOTA
            assert await retain(anonymous, "te/2", b"other") == 0
            assert await retain(known, "te/4") == 0
            assert await retain(known, "te/5") == 0
            assert await retain(known, "te/6") == QUOTA
            assert await retain(anonymous, "te/5", b"") == 0
            assert bound(bench, "retained messages") == {"used": 3, "anonymous": 2}
            for each in (anonymous, known):
                await each.close()


async def test_anonymous_clients_get_half_of_the_retained_bytes(identities_file: Path) -> None:
    """By bytes; a topic of an identity that an anonymous client changes counts as its own."""
    async with running(identities_file=identities_file, local_retained_bytes_max=10_000) as bench:
        anonymous, known = [await signed_in(bench, each) for each in ("a1", "id1")]
        assert await retain(known, "te/1", bytes(3000)) == 0
        assert await retain(anonymous, "te/2", bytes(3000)) == 0
        assert await retain(anonymous, "te/1", bytes(3000)) == QUOTA
        assert await retain(anonymous, "te/1", bytes(100)) == 0
        assert await retain(known, "te/3", bytes(5000)) == 0
        for each in (anonymous, known):
            await each.close()


async def test_anonymous_clients_get_half_of_the_unacknowledged_bytes(
    identities_file: Path,
) -> None:
    """A hub that is full of what anonymous clients sent still takes messages of identities."""
    async with running(identities_file=identities_file, unacknowledged_bytes_max=400_000) as bench:
        bench.router.holding = True
        anonymous = await signed_in(bench, "a1")
        for _ in range(2):
            anonymous.publish("devices/a1/messages/events/", bytes(120_000))
        await bench.router.received(2)
        known = await signed_in(bench, "id1")
        known.publish("devices/id1/messages/events/", bytes(100_000))
        await bench.router.received(3)
        await known.pong()
        paused = {each.client.id: each.pauses != 0 for each in bench.connections()}
        assert paused == {"a1": True, "id1": False}
        bench.router.settle()
        assert [code for _, code in await anonymous.codes(2)] == [0, 0]
        await anonymous.pong()
        for each in (anonymous, known):
            await each.close()


async def test_anonymous_clients_get_half_of_what_waits(identities_file: Path) -> None:
    """What waits for absent anonymous clients leaves room for what waits for identities."""
    async with running(identities_file=identities_file, local_queues_bytes_max=10_000) as bench:
        for client_id in ("a1", "id1"):
            client = await signed_in(bench, client_id, **STORED)
            await client.subscribe(f"te/{client_id}")
            await leave(client)
        sender = await signed_in(bench, "s")
        for client_id in ("a1", "id1"):
            for _ in range(5):
                sender.publish(f"te/{client_id}", bytes(1500))
        await sender.codes(10)
        waiting = {
            each["client_id"]: each["waiting"] for each in bench.listener.session_documents("", 10)
        }
        assert waiting == {"a1": 2, "id1": 3, "s": 0}
        await sender.close()


async def test_anonymous_clients_get_half_of_the_subscriptions(
    identities_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subscriptions of anonymous clients leave room for those of identities."""
    monkeypatch.setattr(space, "SUBSCRIPTION_BYTES_MAX", 4 * (2 * 256 + 4))
    async with running(identities_file=identities_file) as bench:
        anonymous, known = [await signed_in(bench, each) for each in ("a1", "id1")]
        codes = await anonymous.subscribe("te/1", "te/2", "te/3")
        assert codes == [1, 1, QUOTA]
        assert await known.subscribe("te/1", "te/2", "te/3") == [1, 1, QUOTA]
        for each in (anonymous, known):
            await each.close()


async def test_filters_that_branch_without_end_are_refused(
    identities_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However filters are mixed, a topic passes through so many branches and no more.

    Anonymous clients get half of them, and a filter that adds none is granted to everybody.
    """
    monkeypatch.setattr(space, "BRANCHES_MAX", 16)
    async with running(identities_file=identities_file) as bench:
        anonymous, known = [await signed_in(bench, each) for each in ("a1", "id1")]
        assert await anonymous.subscribe("te/+/+/a", "te/b/+/a", "te/b/c/+") == [1, 1, QUOTA]
        assert await anonymous.subscribe("te/b/+/a", "te/e/f/a", "te/g/+/a") == [1, 1, 1]
        assert await known.subscribe("te/b/c/+", "te/b/+/+", "te/+/c/+") == [1, 1, 1]
        assert await known.subscribe("te/+/+/+/+/+/+") == [QUOTA]
        figures = bench.listener.statistics().local
        assert figures.subscription_branches <= 16
        assert figures.subscriptions_refused_total == 2
        for each in (anonymous, known):
            await each.close()


async def test_clients_that_left_and_are_still_shown(
    identities_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invented ids do not drive the topics of identities out of $edge/clients."""
    monkeypatch.setattr(presence, "DEPARTED_MAX", 4)
    async with running(identities_file=identities_file) as bench:
        for client_id in ("id1", "id2", "a1", "a2", "a3", "a4"):
            await code_of(bench, client_id)
        watch = await signed_in(bench, "id3")
        await watch.subscribe("$edge/clients/+/connected", max_qos=mqtt5.QoS.AT_MOST_ONCE)
        shown = [(await watch.read(mqtt5.PublishPacket)).topic.split("/")[2] for _ in range(5)]
        assert set(shown) == {"id1", "id2", "id3", "a3", "a4"}
        await watch.pong()
        await watch.close()


async def test_the_first_identities_of_a_running_hub(identities_file: Path) -> None:
    """When identities are added, anonymous clients beyond the half are closed, newest first."""
    async with running(clients_max=4) as bench:
        clients = [await signed_in(bench, f"a{number}", **STORED) for number in range(4)]
        await clients[0].subscribe("te/other")
        assert await retain(clients[0], "te/1") == 0
        bench.identities.apply(read_identity_list(identities_file))
        bench.listener.identities_changed()
        for client in clients[2:]:
            assert (await client.goodbye()).reason_code == QUOTA
        await clients[1].pong()
        known = await signed_in(bench, "id1")
        assert bound(bench, "clients") == {"used": 3, "anonymous": 2}
        for client in (*clients, known):
            await client.close()


async def test_the_kind_of_a_client_follows_the_identities(identities_file: Path) -> None:
    """What a client left counts as that of an identity as soon as it has one, and no longer."""
    async with running(identities_file=identities_file) as bench:
        client = await signed_in(bench, "id1", **STORED)
        await client.subscribe("te/other")
        assert await retain(client, "te/1") == 0
        names = ("stored sessions", "retained messages", "bytes of subscriptions")
        assert {bound(bench, name)["anonymous"] for name in names} == {0}
        without = dict(read_identity_list(identities_file).entries)
        del without["id1"]
        bench.identities.apply(IdentityList(entries=without))
        bench.listener.identities_changed()
        for name in names:
            counts = bound(bench, name)
            assert counts["anonymous"] == counts["used"] > 0, name
        bench.identities.apply(read_identity_list(identities_file))
        bench.listener.identities_changed()
        assert {bound(bench, name)["anonymous"] for name in names} == {0}
        await client.close()


async def test_the_id_of_the_hub(identities_file: Path) -> None:
    """What the hub itself does has no bound, so no anonymous client gets the hub's own id."""
    async with running(identities_file=identities_file) as bench:
        assert await code_of(bench, "hub") == 0x87
        assert await code_of(bench, "hub/module") == 0
    async with running() as bench:
        assert await code_of(bench, "hub") == 0
