"""The listener in MQTT 5: what comes in with properties, what goes out, and the code of each no."""

import mqtt5
import pytest

from edgehub.clock import ManualClock
from edgehub.heads.mqtt.ingress5 import RECEIVE_MAXIMUM
from edgehub.message import FailureKind, Message, Refusal
from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import AT_MOST_ONCE, BOUND, EVENTS, EXACTLY_ONCE, Client5
from tests.support.mqtt_listener import Results, running

pytestmark = pytest.mark.integration

INPUTS = "devices/hub/modules/cam/#"


def a_message(body: bytes = b"body", **properties: str | None) -> Message:
    """Build a message from device d7."""
    system = {"contentType": "text/plain", "cid": "c1"}
    return Message("d7", None, "/messages/", properties, system, body, message_id="m1")


async def test_properties_become_those_of_the_message():
    """User properties are application properties; what has a place of its own goes there."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        client.publish(
            EVENTS + "k=v",
            b"hot",
            user_properties=[("kind", "alarm"), ("unit", "C"), ("kind", "last"), ("", "x")],
            content_type="application/json",
            correlation_data=b"job-7",
            response_topic="answers/here",
            message_expiry_interval=90,
            payload_format_indicator=1,
        )
        assert await client.codes(1) == [(1, 0)]
        (message,) = bench.router.messages
        assert message.properties == {"kind": "last", "unit": "C", "k": "v"}
        assert message.system == {"contentType": "application/json", "cid": "job-7"}
        assert message.expiry_ms == 90_000
        assert message.body == b"hot"
        await client.close()


async def test_the_bag_wins():
    """On a clash of names what the topic says holds, for both kinds of properties."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        client.publish(
            EVENTS + "k=bag&%24.ct=bag",
            user_properties=[("k", "user"), ("$.ct", "user"), ("$.ce", "utf-8"), ("$.cdid", "d9")],
            content_type="own",
            retain=True,
        )
        assert await client.codes(1) == [(1, 0)]
        (message,) = bench.router.messages
        assert message.properties == {"k": "bag", "mqtt-retain": "true"}
        assert message.system == {"contentType": "bag", "contentEncoding": "utf-8"}
        assert message.sender == "dev1"
        await client.close()


async def test_an_output_named_by_a_user_property():
    """A module may name its output as it names all else; routes see it."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "dev1/cam")
        topic = "devices/dev1/modules/cam/messages/events/"
        client.publish(topic, user_properties=[("$.on", "alerts")])
        assert await client.codes(1) == [(1, 0)]
        assert bench.router.messages[0].source == "/messages/modules/cam/outputs/alerts/"
        await client.close()


async def test_topic_aliases():
    """A topic is sent once and its alias from then on."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        client.publish(EVENTS + "k=v", b"1", topic_alias=1)
        client.publish("", b"2", topic_alias=1, packet_id=2)
        assert await client.codes(2) == [(1, 0), (2, 0)]
        assert [m.properties for m in bench.router.messages] == [{"k": "v"}] * 2
        await client.close()


@pytest.mark.parametrize(
    ("topic", "options", "code", "reason"),
    [
        ("elsewhere", {}, 0x90, "topic_not_allowed"),
        (EVENTS + "a=1&", {}, 0x99, "bag_malformed"),
        (EVENTS + "k=%ff", {}, 0x99, "bag_malformed"),
        (EVENTS, {"payload": b"\xff", "payload_format_indicator": 1}, 0x99, "body_not_utf8"),
        (EVENTS, {"payload": b"x" * 1001}, 0x83, "too_large"),
        (EVENTS, {"payload": b"x" * 900, "user_properties": [("n", "y" * 100)]}, 0x83, "too_large"),
    ],
)
async def test_what_cannot_be_taken_is_named(topic, options, code, reason):
    """A PUBLISH that is refused has its code and words; good ones flow, and it is counted."""
    async with running(message_bytes_max=1000) as bench:
        client = await Client5.signed_in(bench.port)
        client.publish(topic, **options)
        client.publish(topic, **options, qos=AT_MOST_ONCE)
        client.publish(EVENTS, b"good", packet_id=2)
        refused = await client.read(mqtt5.PubAckPacket)
        assert (refused.packet_id, int(refused.reason_code)) == (1, code)
        assert refused.reason_str
        assert await client.codes(1) == [(2, 0)]
        assert bench.dropped() == {reason: 2}
        assert [m.body for m in bench.router.messages] == [b"good"]
        await client.close()


async def test_no_reasons_where_they_are_not_wanted():
    """With Request Problem Information 0 codes come without words."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, request_problem_info=False)
        client.publish("elsewhere")
        assert (await client.read(mqtt5.PubAckPacket)).reason_str is None
        client.send(mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("#")]))
        assert (await client.read(mqtt5.SubAckPacket)).reason_str is None
        client.publish(topic_alias=17)
        assert (await client.goodbye()).reason_str is None
        await client.close()


async def test_refused_by_a_limit():
    """A limit is told with 0x97 and the connection goes on; answers keep their order."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        bench.router.holding = True
        for packet_id in (1, 2, 3):
            client.publish(packet_id=packet_id)
        await bench.router.received(3)
        bench.router.settle(2)
        bench.router.settle(1, refusal=Refusal.LIMIT)
        bench.router.settle()
        assert await client.codes(3) == [(1, 0), (2, 0x97), (3, 0)]
        bench.router.holding = False
        bench.router.refusal = Refusal.INVALID
        client.publish(packet_id=4)
        assert await client.codes(1) == [(4, 0x83)]
        assert bench.dropped() == {"limit": 1, "invalid": 1}
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_refused_because_the_hub_closes():
    """The client hears that the hub shuts down; its message is not acknowledged."""
    async with running() as bench:
        bench.router.refusal = Refusal.CLOSED
        client = await Client5.signed_in(bench.port)
        client.publish()
        assert int((await client.goodbye()).reason_code) == 0x8B
        assert bench.ended() == {"hub_closed": 1}
        await client.close()


async def test_the_hub_shuts_down():
    """At a drain what was taken is acknowledged first, then the client is told."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        client.publish()
        await bench.router.received(1)
        await bench.listener.drain()
        await bench.listener.close()
        assert await client.codes(1) == [(1, 0)]
        assert int((await client.goodbye()).reason_code) == 0x8B
        await client.close()


async def test_receive_maximum_of_the_hub():
    """More than CONNACK allows without PUBACK closes; what came before is kept."""
    async with running(connection_bytes_max=2**24) as bench:
        bench.router.holding = True
        client = await Client5.signed_in(bench.port)
        for packet_id in range(1, RECEIVE_MAXIMUM + 2):
            client.publish(packet_id=packet_id, payload=b"")
        assert int((await client.goodbye()).reason_code) == 0x93
        assert len(bench.router.messages) == RECEIVE_MAXIMUM
        assert bench.ended() == {"receive_maximum": 1}
        bench.router.settle()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_what_comes_after_the_end_is_passed_over(caplog):
    """A client that has not read yet why it was closed sends on for a moment."""
    async with running() as bench:
        first = await Client5.signed_in(bench.port)
        second = await Client5.signed_in(bench.port)
        assert int((await first.goodbye()).reason_code) == 0x8E
        first.publish(payload=b"late")
        for _ in range(2):
            await second.pong()
        assert bench.router.messages == []
        assert caplog.messages == []
        for each in (first, second):
            await each.close()


async def test_packet_too_large():
    """A packet over the announced size is refused by its header, and the client learns why."""
    async with running(message_bytes_max=1000) as bench:
        client = await Client5.open(bench.port)
        answer = await client.connect()
        client.publish(payload=b"x" * answer.max_packet_size)
        client.publish(payload=b"y" * 1_000_000, packet_id=2)
        assert int((await client.goodbye()).reason_code) == 0x95
        assert bench.ended() == {"packet_too_large": 1}
        assert bench.router.messages == []
        # No more than the header was read: what is told is the packet, with the topic, two lengths,
        # the packet id and the length of no properties.
        size = answer.max_packet_size + len(EVENTS) + len(b"LLid0")
        assert bench.router.told == [("dev1", size, "too_large")]
        assert bench.dropped() == {"too_large": 1}
        await client.close()


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (mqtt5.PublishPacket(EVENTS, b"", topic_alias=17).write(), 0x94, "protocol_error"),
        (mqtt5.ConnectPacket("dev1").write(), 0x82, "protocol_error"),
        (b"\x36\x05\x00\x01t\x00\x01", 0x81, "protocol_error"),
        (
            mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("$share/g/a", no_local=True)]).write(),
            0x82,
            "protocol_error",
        ),
        (mqtt5.DisconnectPacket(session_expiry_interval=9).write(), 0x82, "protocol_error"),
    ],
)
async def test_what_ends_a_connection_is_named(data, code, reason):
    """The last packet says why; what came before it is acknowledged."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        client.publish(packet_id=8)
        client.raw.send(data)
        assert await client.codes(1) == [(8, 0)]
        goodbye = await client.goodbye()
        assert int(goodbye.reason_code) == code
        assert goodbye.reason_str
        assert bench.ended() == {reason: 1}
        assert bench.router.told == []
        await client.close()


async def test_another_identity_is_refused_in_words():
    """PUBACK 0x87 names it; the connection lasts, and others' messages with it."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        client.publish(packet_id=1)
        client.publish("devices/other/messages/events/", b"abc", packet_id=2)
        client.publish("devices/other/messages/events/", b"abcd", qos=AT_MOST_ONCE)
        client.publish(packet_id=3)
        assert await client.codes(1) == [(1, 0)]
        answer = await client.read(mqtt5.PubAckPacket)
        assert (answer.packet_id, int(answer.reason_code)) == (2, 0x87)
        assert "on_behalf" in answer.reason_str
        assert answer.user_properties == [("refused_sender", "other")]
        assert await client.codes(1) == [(3, 0)]
        assert bench.dropped() == {"foreign_identity": 2}
        assert bench.router.told == [("dev1", size, "foreign_identity") for size in (3, 4)]
        assert [message.sender for message in bench.router.messages] == ["dev1", "dev1"]
        await client.close()


async def test_silence_and_take_over():
    """Keep-alive and take-over are told by their codes."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        first = await Client5.signed_in(bench.port, keep_alive=20)
        second = await Client5.signed_in(bench.port, keep_alive=20)
        assert int((await first.goodbye()).reason_code) == 0x8E
        await clock.advance(29)
        assert bench.ended() == {"taken_over": 1}
        await clock.advance(2)
        assert int((await second.goodbye()).reason_code) == 0x8D
        await first.close()
        await second.close()


@pytest.mark.parametrize(
    ("client_id", "options", "code"),
    [
        ("a b", {}, 0x85),
        ("dev1", {"username": "dev2"}, 0x85),
        ("dev1", {"username": "h/dev1/?x=1"}, 0x86),
        ("dev1", {"password": b"wrong"}, 0x86),
        ("dev1", {"authentication_method": "SCRAM-SHA-1"}, 0x8C),
        ("dev1", {"will": mqtt5.Will("elsewhere")}, 0x90),
        ("dev1", {"will": mqtt5.Will(EVENTS, payload=b"x" * 2000)}, 0x95),
    ],
)
async def test_sign_in_refused(client_id, options, code):
    """A refused CONNECT has its code and words."""
    async with running(message_bytes_max=1000) as bench:
        client = await Client5.open(bench.port)
        answer = await client.connect(client_id, **options)
        assert int(answer.reason_code) == code
        assert answer.reason_str
        assert await client.raw.closed()
        assert bench.ended() == {"connect_refused": 1}
        await client.close()


async def test_a_malformed_connect():
    """Even that is told in MQTT 5 where the client can be seen to speak it."""
    async with running() as bench:
        client = await Client5.open(bench.port)
        client.raw.send(wire.packet(0x10, wire.field("MQTT") + b"\x05\x02\x00\x00\x01\x7e\x00\x00"))
        assert int((await client.read(mqtt5.ConnAckPacket)).reason_code) == 0x81
        assert await client.raw.closed()
        await client.close()


async def test_a_client_id_is_assigned():
    """An empty client id gets one, also with a session, and the client is told."""
    async with running() as bench:
        client = await Client5.open(bench.port)
        answer = await client.connect("", clean_start=False, session_expiry_interval=60)
        assert answer.assigned_client_id.startswith("auto-")
        client.publish(f"devices/{answer.assigned_client_id}/messages/events/")
        assert await client.codes(1) == [(1, 0)]
        named = await Client5.open(bench.port)
        assert (await named.connect("", username="dev5")).assigned_client_id == "dev5"
        await client.close()
        await named.close()


async def test_too_many_clients():
    """A full hub says so."""
    async with running(clients_max=1) as bench:
        first = await Client5.signed_in(bench.port)
        second = await Client5.open(bench.port)
        assert int((await second.connect("dev2")).reason_code) == 0x97
        await first.close()
        await second.close()


async def test_a_client_that_takes_next_to_nothing():
    """Who takes no CONNACK gets none."""
    async with running() as bench:
        client = await Client5.open(bench.port)
        will = mqtt5.Will(EVENTS, payload=b"gone")
        client.send(mqtt5.ConnectPacket("dev1", clean_start=True, max_packet_size=10, will=will))
        assert await client.raw.closed()
        assert bench.ended() == {"packet_too_large": 1}
        assert bench.router.messages == []
        await client.close()


async def test_an_answer_that_does_not_fit():
    """A SUBACK larger than the client takes ends the connection."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, max_packet_size=60)
        client.send(mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("x")] * 100))
        assert int((await client.goodbye()).reason_code) == 0x95
        await client.close()


async def test_subscriptions():
    """Each filter has its own code; QoS 2 is granted; UNSUBACK tells what there was."""
    async with running(subscriptions_max=2) as bench:
        client = await Client5.signed_in(bench.port)
        inputs = "devices/hub/modules/cam/#"
        codes = await client.subscribe(BOUND, inputs, "devices/#", "a/b", max_qos=EXACTLY_ONCE)
        assert codes == [2, 0x87, 0x8F, 0x8F]
        names = b"".join(wire.field(name) for name in (BOUND, "#", "#/a", "$share/g"))
        client.raw.send(wire.packet(0xA2, b"\0\2\0" + names))
        answer = await client.read(mqtt5.UnsubAckPacket)
        assert [int(code) for code in answer.reason_codes] == [0, 0x11, 0x8F, 0x8F]
        await client.close()
        module = await Client5.signed_in(bench.port, "hub/m")
        names = [f"devices/hub/modules/m/inputs/i{n}/#" for n in range(3)]
        assert await module.subscribe(*names) == [1, 1, 0x97]
        await module.close()


async def test_what_is_sent():
    """A delivery has the bag in its topic as ever, and the same as properties of MQTT 5."""
    async with running() as bench:
        module = await Client5.signed_in(bench.port, "hub/cam")
        await module.subscribe(INPUTS)
        results = Results()
        message = a_message(kind="a b", flag=None, nul="a\0b")
        bench.listener.deliver("cam", "i", message, results.settle, expires_in_ms=2_500)
        packet = await module.read(mqtt5.PublishPacket)
        assert packet.topic == (
            "devices/hub/modules/cam/inputs/i/kind=a%20b&flag&nul=a%00b"
            "&%24.ct=text%2Fplain&%24.cid=c1&%24.mid=m1&%24.cdid=d7"
        )
        assert packet.user_properties == [("kind", "a b"), ("flag", "")]
        assert (packet.content_type, packet.correlation_data) == ("text/plain", b"c1")
        assert (packet.message_expiry_interval, packet.payload) == (3, b"body")
        module.send(mqtt5.PubAckPacket(packet.packet_id))
        await results.count(1)
        assert results.kinds == [None]
        bench.listener.deliver("cam", "i", message, results.settle)
        packet = await module.read(mqtt5.PublishPacket)
        assert packet.message_expiry_interval is None
        await module.close()


async def test_both_protocol_versions_side_by_side():
    """A message of a 3.1.1 device reaches a module of MQTT 5 and the other way round."""
    async with running() as bench:
        old = await wire.RawClient.signed_in(bench.port, "hub/old")
        old.send(wire.subscribe(("devices/hub/modules/old/#", 1)))
        await old.read()
        new = await Client5.signed_in(bench.port, "hub/new")
        await new.subscribe("devices/hub/modules/new/#")
        results = Results()
        message = a_message(k="v")
        bench.listener.deliver("old", "i", message, results.settle, expires_in_ms=1_000)
        bench.listener.deliver("new", "i", message, results.settle, expires_in_ms=1_000)
        topic, body, _ = await old.read_publish()
        packet = await new.read(mqtt5.PublishPacket)
        assert packet.topic.replace("/new/", "/old/") == topic
        assert (packet.payload, body) == (b"body", b"body")
        await old.close()
        await new.close()


async def test_retain_as_published():
    """The retain flag of the sender comes back to who asked for it, and to nobody else."""
    async with running() as bench:
        results = Results()
        message = a_message(**{"mqtt-retain": "true"})
        for wanted in (True, False):
            client = await Client5.signed_in(bench.port)
            codes = await client.subscribe(
                BOUND,
                retain_as_published=wanted,
                no_local=True,
                retain_handling=mqtt5.RetainHandling.SEND_NEVER,
            )
            assert codes == [1]
            bench.send("dev1", message, results.settle)
            assert (await client.read(mqtt5.PublishPacket)).retain == wanted
            (document,) = bench.listener.session_documents("", 10)
            assert document["subscriptions"] == 1
            await client.close()


async def test_receive_maximum_of_the_client():
    """No more than the client takes is in flight; the rest waits for PUBACKs, in order."""
    async with running() as bench:
        module = await Client5.signed_in(bench.port, "hub/cam", receive_max=2)
        await module.subscribe(INPUTS)
        results = Results()
        for number in range(5):
            bench.listener.deliver("cam", "i", a_message(b"%d" % number), results.settle)
        assert bench.listener.unsent_bytes("cam") > 0
        seen = [await module.read(mqtt5.PublishPacket) for _ in range(2)]
        await module.pong()
        for _ in range(3):
            module.send(mqtt5.PubAckPacket(seen[-2].packet_id))
            seen.append(await module.read(mqtt5.PublishPacket))
        assert [packet.payload for packet in seen] == [b"0", b"1", b"2", b"3", b"4"]
        await results.count(3)
        await module.close()
        assert results.kinds[:3] == [None] * 3
        await results.count(5)
        assert results.kinds[3:] == [FailureKind.DISCONNECTED] * 2


async def test_maximum_packet_size_of_the_client():
    """What is larger than the client takes is not sent and can never be."""
    async with running() as bench:
        module = await Client5.signed_in(bench.port, "hub/cam", max_packet_size=300)
        await module.subscribe(INPUTS)
        results = Results()
        bench.listener.deliver("cam", "i", a_message(b"x" * 300), results.settle)
        bench.listener.deliver("cam", "i", a_message(b"fits"), results.settle)
        assert results.kinds == [FailureKind.TOO_LARGE]
        assert (await module.read(mqtt5.PublishPacket)).payload == b"fits"
        await module.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0x10, None),
        (0x80, FailureKind.TRANSIENT),
        (0x83, FailureKind.TRANSIENT),
        (0x87, FailureKind.REJECTED),
        (0x90, FailureKind.REJECTED),
        (0x97, FailureKind.THROTTLED),
        (0x99, FailureKind.REJECTED),
    ],
)
async def test_a_client_refuses_a_delivery(code, kind):
    """The code of a module's PUBACK decides what becomes of the message."""
    async with running() as bench:
        module = await Client5.signed_in(bench.port, "hub/cam")
        await module.subscribe(INPUTS)
        results = Results()
        bench.listener.deliver("cam", "i", a_message(), results.settle)
        packet = await module.read(mqtt5.PublishPacket)
        module.send(mqtt5.PubAckPacket(packet.packet_id, reason_code=mqtt5.PubAckReasonCode(code)))
        await results.count(1)
        assert results.kinds == [kind]
        await module.close()
