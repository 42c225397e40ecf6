"""The listener on real sockets: sessions, wills, take-over, keep-alive, order of PUBACKs."""

import socket

import pytest

from edgehub.clock import ManualClock, SystemClock
from edgehub.devices.identities import Identities, read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import StartupError
from edgehub.heads.mqtt.context import ListenerContext
from edgehub.heads.mqtt.listener import MqttListener
from edgehub.mqtt.hub_path import HubPath
from edgehub.mqtt.packets import ConnectCode
from tests.support import mqtt_wire as wire
from tests.support.mqtt_listener import (
    STORE_ID,
    MemorySessions,
    ScriptedRouter,
    a_space,
    mqtt_settings,
    running,
)
from tests.support.mqtt_wire import RawClient

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"
WILL = ("devices/dev1/messages/events/k=v", b"gone")
HASH = PasswordHash.of(b"secret")


@pytest.fixture
def identities_file(tmp_path):
    """Identities dev1, the module dev1/mod and a child hub for `dev-*`, password `secret`."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as identities:
        for identity_id, on_behalf in [("dev1", ()), ("dev1/mod", ()), ("child", ("dev-*",))]:
            identities[identity_id] = Identity(id=identity_id, password=HASH, on_behalf=on_behalf)
    return path


async def refused_with(port: int, data: bytes) -> int:
    """Send a CONNECT; gives the return code of the CONNACK, behind which the hub must close."""
    client = await RawClient.open(port)
    client.send(data)
    head, body = await client.read()
    assert head == wire.CONNACK
    if body[1]:
        assert await client.closed()
    await client.close()
    return body[1]


async def test_publish_of_both_qualities():
    """Messages reach the router whole; QoS 1 is acknowledged."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS + "k=v&%24.ct=text", b"zero"))
        client.send(wire.publish(EVENTS, b"one", qos=1, packet_id=7))
        assert await client.read_pubacks(1) == [7]
        zero, one = bench.router.messages
        assert (zero.body, zero.properties, zero.system) == (
            b"zero",
            {"k": "v"},
            {"contentType": "text"},
        )
        assert (one.sender, one.source, one.body) == ("dev1", "/messages/", b"one")
        await client.close()


async def test_messages_of_a_topic_share_their_header():
    """What the store made of one is not made again for the next ones, but for other topics."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        for packet_id, header in enumerate((b"", b"first", b"second"), 1):
            bench.router.header = header
            client.send(wire.publish(EVENTS + "k=v", b"x", qos=1, packet_id=packet_id))
            assert await client.read_pubacks(1) == [packet_id]
        client.send(wire.publish(EVENTS + "k=w", b"x", qos=1, packet_id=4))
        assert await client.read_pubacks(1) == [4]
        headers = [message.header for message in bench.router.messages]
        assert headers == [b"", b"first", b"first", b"second"]
        await client.close()


async def test_module_output():
    """A module's output name becomes part of the message source."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, "hub/cam")
        topic = "devices/hub/modules/cam/messages/events/%24.on=alerts&k=v/"
        client.send(wire.publish(topic, b"x", qos=1))
        await client.read_pubacks(1)
        (message,) = bench.router.messages
        assert message.source == "/messages/modules/cam/outputs/alerts/"
        assert message.sender == "hub/cam"
        await client.close()


async def test_retain_becomes_a_property():
    """The retain flag survives as a property; other messages of the topic do not get it."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        client.send(wire.publish(EVENTS + "k=v", b"x", qos=1, flags=1))
        client.send(wire.publish(EVENTS + "k=v", b"x", qos=1))
        await client.read_pubacks(2)
        assert [m.properties for m in bench.router.messages] == [
            {"k": "v", "mqtt-retain": "true"},
            {"k": "v"},
        ]
        await client.close()


async def test_model_id_of_the_user_name():
    """A model id in the user name becomes a system property."""
    async with running() as bench:
        client = await RawClient.signed_in(
            bench.port, user="host/dev1/?api-version=1&model-id=dtmi%3Ax"
        )
        client.send(wire.publish(EVENTS, b"x", qos=1))
        await client.read_pubacks(1)
        assert bench.router.messages[0].system == {"modelId": "dtmi:x"}
        await client.close()


async def test_pubacks_keep_the_order_of_publishes():
    """Settled out of order, PUBACKs still leave in the order of their PUBLISHes."""
    async with running() as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port)
        for packet_id in (5, 3, 9, 1):
            client.send(wire.publish(EVENTS, b"x", qos=1, packet_id=packet_id))
        await bench.router.received(4)
        bench.router.settle(2, 1)
        await client.pong()
        bench.router.settle()
        assert await client.read_pubacks(4) == [5, 3, 9, 1]
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_packets_before_the_connack(identities_file):
    """A client may send on before it is signed in; nothing is acted upon before that."""
    async with running(identities_file=identities_file, anonymous=False) as bench:
        client = await RawClient.open(bench.port)
        client.send(
            wire.connect(user="dev1", password=b"secret")
            + wire.publish(EVENTS, b"x", qos=1)
            + wire.PINGREQ
        )
        assert (await client.read())[0] == wire.CONNACK
        assert (await client.read())[0] in {wire.PUBACK, wire.PINGRESP}
        await client.close()
        bad = await RawClient.open(bench.port)
        bad.send(wire.connect(user="dev1", password=b"no") + wire.publish(EVENTS, b"y", qos=1))
        assert (await bad.read())[1][1] == 4
        assert await bad.closed()
        assert [m.body for m in bench.router.messages] == [b"x"]
        await bad.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"user": "dev1", "password": b"secret"}, 0),
        ({"user": "h/dev1/?api-version=1", "password": b"secret"}, 0),
        ({"client_id": "", "user": "dev1", "password": b"secret"}, 0),
        ({"client_id": "dev1/mod", "user": "h/dev1/mod/api-version=1", "password": b"secret"}, 0),
        ({"user": "dev1", "password": b"wrong"}, 4),
        ({"user": "dev1", "password": b"secret\0"}, 4),
        ({"user": "dev1", "password": b"sec\0ret"}, 4),
        ({"user": "dev1", "password": b"\0"}, 4),
        ({"client_id": "nobody", "user": "nobody", "password": b"secret"}, 4),
        ({"client_id": "dev2", "user": "dev1", "password": b"secret"}, 2),
        ({"user": "dev1"}, 5),
        ({}, 5),
        ({"client_id": "anyone"}, 0),
        ({"client_id": "", "clean": False}, 2),
        ({"client_id": "a/b/c"}, 2),
        ({"protocol": ("MQTT", 6)}, 1),
        ({"protocol": ("MQIsdp", 3)}, 1),
        ({"client_id": "x", "will": ("devices/y/messages/events/", b"")}, 5),
    ],
)
async def test_sign_in(identities_file, options, code):
    """Who may come in comes in, the rest is told why not; listed ids need their password."""
    async with running(identities_file=identities_file) as bench:
        assert await refused_with(bench.port, wire.connect(**options)) == code
        counted = {ConnectCode(code).name.lower(): 1} if code else {}
        assert bench.listener.statistics().refused_connects == counted


async def test_a_flood_of_sign_ins_does_not_stop_the_others(identities_file):
    """While many passwords are being hashed, a signed-in client is served."""
    async with running(identities_file=identities_file) as bench:
        client = await RawClient.signed_in(bench.port, "other")
        flood = [await RawClient.open(bench.port) for _ in range(40)]
        for attacker in flood:
            attacker.send(wire.connect("dev1", user="dev1", password=b"wrong"))
        for _ in range(20):
            await client.pong()
        assert bench.listener.statistics().refused_connects.get("credentials", 0) < 40
        for attacker in flood:
            attacker.cut()
        await client.close()


async def test_clean_session_leaves_nothing():
    """A clean session ends stored ones and is not stored itself."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, clean=False)
        client.send(wire.subscribe(("devices/dev1/messages/devicebound/#", 1)))
        assert (await client.read())[1] == b"\x00\x01\x01"
        assert bench.sessions.table == {"dev1": {"devices/dev1/messages/devicebound/#": 1}}
        client.send(wire.DISCONNECT)
        assert await client.closed()
        clean = await RawClient.signed_in(bench.port)
        await clean.pong()
        assert bench.sessions.table == {}
        stored = await RawClient.open(bench.port)
        stored.send(wire.connect(clean=False))
        assert await stored.read() == (wire.CONNACK, b"\x00\x00")
        for each in (client, clean, stored):
            await each.close()


async def test_stored_session_outlives_the_hub():
    """After a restart the session is present and its subscriptions work without SUBSCRIBE."""
    sessions = MemorySessions()
    async with running(sessions=sessions) as bench:
        client = await RawClient.signed_in(bench.port, clean=False)
        client.send(wire.subscribe(("devices/dev1/messages/devicebound/#", 1)))
        await client.read()
        await client.close()
    async with running(sessions=sessions) as bench:
        assert bench.listener.statistics().stored_sessions == 1
        client = await RawClient.open(bench.port)
        client.send(wire.connect(clean=False))
        assert await client.read() == (wire.CONNACK, b"\x01\x00")
        assert await bench.interest.count(1) == [("dev1", True)]
        await client.close()


async def test_a_session_that_cannot_be_stored():
    """A SUBSCRIBE whose session cannot be stored is not acknowledged; the client comes again."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, clean=False)
        bench.sessions.failing = True
        client.send(wire.subscribe(("devices/dev1/messages/devicebound/#", 1)))
        assert await client.closed()
        assert bench.ended() == {"store_failed": 1}
        await client.close()


async def test_subscribe_and_unsubscribe():
    """Filters of the dialect have the QoS that they ask for; UNSUBSCRIBE ends them."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port)
        client.send(
            wire.subscribe(
                ("devices/dev1/messages/devicebound/#", 2),
                ("devices/dev2/messages/devicebound/#", 1),
                ("devices/#", 0),
                ("$iothub/twin/res/#", 0),
                packet_id=3,
            )
        )
        assert await client.read() == (wire.SUBACK, b"\x00\x03\x02\x80\x80\x80")
        client.send(wire.unsubscribe("devices/dev1/messages/devicebound/#", "x", packet_id=4))
        assert await client.read() == (wire.UNSUBACK, b"\x00\x04")
        assert bench.interest.all == [("dev1", True), ("dev1", False)]
        await client.close()


async def test_subscriptions_of_a_session_are_bounded():
    """Beyond the bound a SUBSCRIBE is refused, filters already there can be renewed."""
    async with running(subscriptions_max=2) as bench:
        client = await RawClient.signed_in(bench.port, "hub/m")
        names = [f"devices/hub/modules/m/inputs/i{n}/#" for n in range(3)]
        client.send(wire.subscribe(*((name, 1) for name in names), (names[0], 0)))
        assert (await client.read())[1] == b"\x00\x01\x01\x01\x80\x00"
        await client.close()


async def test_take_over():
    """A second connection with the same id closes the first, which counts as its will's case."""
    async with running() as bench:
        first = await RawClient.signed_in(bench.port, will=WILL)
        second = await RawClient.signed_in(bench.port)
        assert await first.closed()
        second.send(wire.publish(EVENTS, b"x", qos=1))
        await second.read_pubacks(1)
        assert [m.body for m in bench.router.messages] == [b"gone", b"x"]
        assert bench.ended() == {"taken_over": 1}
        assert bench.client_ids() == ["dev1"]
        await first.close()
        await second.close()


async def test_no_client_takes_over_a_listed_identity(identities_file):
    """An anonymous client cannot end the session of an identity with a password."""
    async with running(identities_file=identities_file) as bench:
        owner = await RawClient.signed_in(bench.port, user="dev1", password=b"secret")
        assert await refused_with(bench.port, wire.connect()) == 5
        assert await refused_with(bench.port, wire.connect(user="dev1", password=b"no")) == 4
        await owner.pong()
        await owner.close()


async def test_will_of_a_lost_client():
    """A client that is cut off gets its will sent, as a message that says what it is."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, will=WILL, will_flags=0x28)
        client.cut()
        (message,) = await bench.router.received(1)
        assert message.body == b"gone"
        assert message.properties == {
            "k": "v",
            "iothub-MessageType": "Will",
            "mqtt-retain": "true",
        }


async def test_no_will_after_a_goodbye():
    """DISCONNECT drops the will, whatever comes behind it."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, will=WILL)
        client.send(wire.DISCONNECT + wire.publish(EVENTS, b"x"))
        assert await client.closed()
        assert bench.router.messages == []
        assert bench.ended() == {"disconnect": 1}
        await client.close()


async def test_keep_alive():
    """A silent client is closed after one and a half times its keep-alive, with its will."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await RawClient.signed_in(bench.port, keep_alive_s=10, will=WILL)
        await clock.advance(14)
        await client.pong()
        await clock.advance(14.9)
        assert bench.router.messages == []
        await clock.advance(0.2)
        assert await client.closed()
        assert [m.body for m in bench.router.messages] == [b"gone"]
        assert bench.ended() == {"keep_alive": 1}
        await client.close()


async def test_no_keep_alive():
    """A client that asked for no keep-alive may be silent for ever."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await RawClient.signed_in(bench.port, keep_alive_s=0)
        await clock.advance(100_000)
        await client.pong()
        await client.close()


async def test_connect_timeout():
    """Whoever does not sign in in time is closed: silent, or with half a CONNECT."""
    clock = ManualClock()
    async with running(clock=clock, connect_timeout_s=30) as bench:
        silent = await RawClient.open(bench.port)
        half = await RawClient.open(bench.port)
        half.send(wire.connect()[:9])
        signed_in = await RawClient.signed_in(bench.port, keep_alive_s=0)
        await half.flushed()
        await clock.advance(31)
        assert await silent.closed()
        assert await half.closed()
        await signed_in.pong()
        assert bench.ended() == {"connect_timeout": 2}
        for each in (silent, half, signed_in):
            await each.close()


async def test_too_many_clients():
    """Beyond the bound a sign-in is refused, a take-over is not."""
    async with running(clients_max=2) as bench:
        first = await RawClient.signed_in(bench.port, "a")
        second = await RawClient.signed_in(bench.port, "b")
        assert await refused_with(bench.port, wire.connect("c")) == 3
        again = await RawClient.signed_in(bench.port, "b")
        assert await second.closed()
        for each in (first, second, again):
            await each.close()


async def test_too_many_connections():
    """Of connections that never sign in the oldest gives way, so they keep no client out."""
    async with running(clients_max=1) as bench:
        idle = [await RawClient.open(bench.port) for _ in range(2)]
        late = await RawClient.signed_in(bench.port)
        assert await idle[0].closed()
        more = await RawClient.open(bench.port)
        assert await idle[1].closed()
        await late.pong()
        assert bench.ended() == {"too_many": 2}
        for each in (*idle, late, more):
            await each.close()


async def test_stored_sessions_are_bounded():
    """Nobody can fill the disk with sessions of invented ids."""
    async with running(stored_sessions_max=1) as bench:
        first = await RawClient.signed_in(bench.port, "a", clean=False)
        assert await refused_with(bench.port, wire.connect("b", clean=False)) == 3
        assert await refused_with(bench.port, wire.connect("c")) == 0
        await first.close()


async def test_on_behalf(identities_file):
    """An identity with patterns speaks for devices in scope, and subscribes for them."""
    async with running(identities_file=identities_file) as bench:
        child = await RawClient.signed_in(bench.port, "child", user="child", password=b"secret")
        child.send(wire.publish("devices/dev-1/messages/events/", b"a", qos=1))
        child.send(wire.publish("devices/dev-2/modules/m/messages/events/", b"b", qos=1))
        child.send(wire.publish("devices/child/messages/events/", b"c", qos=1))
        await child.read_pubacks(3)
        senders = [m.sender for m in bench.router.messages]
        assert senders == ["dev-1", "dev-2/m", "child"]
        child.send(
            wire.subscribe(
                ("devices/dev-1/messages/devicebound/#", 1),
                ("devices/dev1/messages/devicebound/#", 1),
            )
        )
        assert (await child.read())[1] == b"\x00\x01\x01\x80"
        child.send(wire.publish("devices/dev1/messages/events/", b"d", qos=1))
        assert await child.closed()
        assert bench.ended() == {"foreign_identity": 1}
        assert len(bench.router.messages) == 3
        await child.close()


async def test_reload_of_identities(identities_file):
    """After a reload, clients whose identity changed or went are closed, others stay."""
    async with running(identities_file=identities_file) as bench:
        dev1 = await RawClient.signed_in(bench.port, user="dev1", password=b"secret")
        child = await RawClient.signed_in(bench.port, "child", user="child", password=b"secret")
        mod = await RawClient.signed_in(bench.port, "dev1/mod", user="dev1/mod", password=b"secret")
        anonymous = await RawClient.signed_in(bench.port, "dev9")
        with changing(identities_file) as entries:
            del entries["dev1"]
            entries["dev9"] = Identity(id="dev9", password=HASH)
            entries["child"] = Identity(id="child", password=HASH, on_behalf=())
        bench.identities.apply(read_identity_list(identities_file))
        bench.listener.identities_changed()
        for each in (dev1, child, anonymous):
            assert await each.closed()
        await mod.pong()
        assert bench.ended() == {"revoked": 3}
        for each in (dev1, child, mod, anonymous):
            await each.close()


async def test_client_list():
    """The list shows what an operator asks about a client."""
    async with running() as bench:
        bench.router.holding = True
        client = await RawClient.signed_in(bench.port, keep_alive_s=17, clean=False)
        client.send(wire.subscribe(("devices/dev1/messages/devicebound/#", 1)))
        await client.read()
        client.send(wire.publish(EVENTS, b"x" * 100, qos=1))
        await bench.router.received(1)
        (document,) = bench.listener.session_documents("", 10)
        assert (document["client_id"], document["connected"], document["stored"]) == (
            "dev1",
            True,
            True,
        )
        assert document["subscriptions"] == 1
        assert bench.listener.statistics().unacknowledged_bytes > 100
        await client.close()


def a_listener(**options) -> MqttListener:
    """Build a listener that is not opened."""
    clock = SystemClock()
    context = ListenerContext(
        mqtt_settings(**options),
        clock=clock,
        submit=ScriptedRouter().submit,
        link_up=lambda: True,
        space=a_space(clock),
        refused=ScriptedRouter().refused,
        identities=Identities(lambda: None),
        hub_path=HubPath(STORE_ID),
        session_store=MemorySessions(),
    )
    return MqttListener(context, offer=ScriptedRouter().submit)


async def test_an_address_in_use():
    """The error says which address is taken and what to set."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"127\.0\.0\.1:{port}.*set mqtt\.port"):
            await a_listener(port=port).open()


async def test_an_address_of_another_machine():
    """The error of an address that is not ours names the setting."""
    with pytest.raises(StartupError, match=r"set mqtt\.host"):
        await a_listener(host="192.0.2.1", port=0).open()


async def test_no_client_could_sign_in():
    """Beyond loopback nobody is anonymous; without identities that is a start-up error."""
    with pytest.raises(StartupError, match="identities_file"):
        await a_listener(host="0.0.0.0", port=0).open()


async def test_all_addresses_of_a_name():
    """A name with several addresses is bound on all of them, with one port."""
    listener = a_listener(host="localhost", port=0)
    await listener.open()
    assert len({port for _, port in listener.addresses["port"]}) == 1
    await listener.close()


async def test_rights_are_checked_when_a_session_returns(identities_file):
    """A stored subscription outside the rights that hold now is not brought back."""
    sessions = MemorySessions()
    sessions.table["child"] = {
        "devices/dev-1/messages/devicebound/#": 1,
        "devices/dev9/messages/devicebound/#": 1,
        "elsewhere/#": 0,
    }
    async with running(identities_file=identities_file, sessions=sessions) as bench:
        child = await RawClient.signed_in(
            bench.port, "child", clean=False, user="child", password=b"secret"
        )
        (connection,) = bench.connections()
        assert connection.subscriptions == {"devices/dev-1/messages/devicebound/#": 1}
        assert bench.interest.all == [("dev-1", True)]
        await child.close()
