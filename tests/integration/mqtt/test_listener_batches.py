"""A parent's listener takes batches of a child hub apart: messages are as if sent one by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import mqtt5
import pytest
from structlog.testing import capture_logs

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.heads.mqtt import ingress
from edgehub.heads.mqtt.ingress5 import SENDERS_NAMED_MAX
from edgehub.message import Refusal
from edgehub.mqtt import batch
from edgehub.mqtt.batch import BATCH_TYPE, build_batch
from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import Client5
from tests.support.mqtt_listener import STORE_ID, running
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

TOPIC = f"devices/child/messages/events/%24.ct={quote(BATCH_TYPE, safe='')}&%24.ce=zstd"

CHILD_STORE_ID = "childhubwith"
"""With it the ids begin that the child gives to messages."""


@pytest.fixture
def identities_file(tmp_path: Path) -> Path:
    """Write a file with a child hub, which speaks for `dev-*`, and one that does so for none."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as identities:
        password = PasswordHash.of(b"secret")
        identities["child"] = Identity(id="child", password=password, on_behalf=("dev-*",))
        identities["lone"] = Identity(id="lone", password=password)
    return path


async def _child(port: int) -> RawClient:
    return await RawClient.signed_in(port, "child", user="child", password=b"secret")


def _payload(*records: dict[str, Any], compress: bool = True) -> bytes:
    return build_batch([json.dumps(record).encode() for record in records], compress=compress)


def _record(number: int, device: str = "dev-1", **more: Any) -> dict[str, Any]:
    return {
        "id": f"{CHILD_STORE_ID}-{number:x}",
        "device": device,
        "body": f"body {number}",
        **more,
    }


@pytest.mark.parametrize("compress", [False, True])
async def test_each_record_becomes_a_message(identities_file: Path, compress: bool) -> None:
    """Senders, sources, properties, ids and bodies are there; one PUBACK answers for all."""
    payload = _payload(
        _record(1, properties={"kind": "alarm", "flag": None}, system={"contentType": "x/y"}),
        _record(2, "dev-2", module="cam", system={"outputName": "out", "secret": "no"}),
        {"id": "m3", "device": "child", "body_base64": "/wA="},
        compress=compress,
    )
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, payload, qos=1, packet_id=9))
        assert await child.read_pubacks(1) == [9]
        first, second, third = bench.router.messages
        await child.close()
    assert (first.sender, first.source, first.body) == ("dev-1", "/messages/", b"body 1")
    assert first.properties == {"kind": "alarm", "flag": None}
    assert first.system == {"contentType": "x/y", "messageId": f"{CHILD_STORE_ID}-1"}
    assert (second.sender, second.source) == ("dev-2/cam", "/messages/modules/cam/outputs/out/")
    assert second.system == {"outputName": "out", "messageId": f"{CHILD_STORE_ID}-2"}
    assert (third.sender, third.body) == ("child", b"\xff\x00")


async def test_the_puback_waits_for_the_last_commit(identities_file: Path) -> None:
    """Invariant 1: nothing is acknowledged while one message of the batch is not durable."""
    async with running(identities_file=identities_file) as bench:
        bench.router.holding = True
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, _payload(_record(1), _record(2)), qos=1))
        await bench.router.received(2)
        bench.router.settle(0)
        await child.pong()
        assert bench.listener.statistics().unacknowledged_bytes > 0
        bench.router.settle(0)
        assert await child.read_pubacks(1) == [1]
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await child.close()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let others have their turn after each record, and count the turns that batches take."""
    monkeypatch.setattr(ingress, "UNPACKED_AT_ONCE_S", 0)
    taken: list[None] = []
    go_on = ingress.Ingress.go_on

    def counted(of: ingress.Ingress) -> None:
        if of.unfinished is not None:
            taken.append(None)
        go_on(of)

    monkeypatch.setattr(ingress.Ingress, "go_on", counted)
    return taken


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_long_batch_is_taken_apart_in_turns(
    identities_file: Path, turns: list[None], qos: int
) -> None:
    """Others come between its records; it keeps its order, its one answer, and what follows it."""
    records = [_record(number) for number in range(200)]
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(
            wire.publish(TOPIC, _payload(*records), qos=qos, packet_id=7 * qos)
            + wire.publish("devices/child/messages/events/", b"after", qos=1, packet_id=8)
        )
        assert await child.read_pubacks(1 + qos) == [7, 8][1 - qos :]
        await child.close()
    bodies = [message.body.decode() for message in bench.router.messages]
    assert bodies == [*(record["body"] for record in records), "after"]
    assert len(turns) >= 2 * len(records) - 2


@pytest.mark.usefixtures("turns")
async def test_a_long_batch_is_taken_whole_or_not_at_all(identities_file: Path) -> None:
    """An end that is no record costs all of it, and a client that leaves before has sent none."""
    broken = _payload(*(_record(number) for number in range(20)), compress=False)[:-3] + b"]}\n"
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, broken, qos=1, packet_id=1))
        assert await child.read_pubacks(1) == [1]
        assert bench.dropped() == {"batch_malformed": 1}
        foreign = _payload(*(_record(number) for number in range(20)), _record(20, "other"))
        child.send(wire.publish(TOPIC, foreign, qos=1, packet_id=2))
        assert await child.closed()
        assert bench.ended() == {"foreign_identity": 1}
        assert bench.router.messages == []
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await child.close()


async def test_a_foreign_device_ends_the_connection(identities_file: Path) -> None:
    """MQTT 3.1.1: as with a PUBLISH of its own; nothing of the batch is taken."""
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, _payload(_record(1), _record(2, "other")), qos=1))
        assert await child.closed()
        assert bench.ended() == {"foreign_identity": 1}
        assert bench.router.messages == []
        await child.close()


async def _child5(port: int, **options: Any) -> Client5:
    return await Client5.signed_in(port, "child", username="child", password=b"secret", **options)


async def test_a_foreign_device_costs_its_records_alone(identities_file: Path) -> None:
    """MQTT 5: the others are taken, and the PUBACK says whose are not, once they are on disk."""
    payload = _payload(_record(1), _record(2, "other"), _record(3), _record(4, "odd", module="m"))
    async with running(identities_file=identities_file) as bench:
        child = await _child5(bench.port)
        bench.router.holding = True
        child.publish(TOPIC, payload, packet_id=7)
        await bench.router.received(2)
        bench.router.settle(0)
        await child.raw.pong()
        bench.router.settle(0)
        answer = await child.read(mqtt5.PubAckPacket)
        assert (answer.packet_id, int(answer.reason_code)) == (7, 0x87)
        assert answer.user_properties == [
            ("refused_sender", "other"),
            ("refused_sender", "odd/m"),
        ]
        assert [message.body for message in bench.router.messages] == [b"body 1", b"body 3"]
        assert bench.dropped() == {"foreign_identity": 2}
        bench.router.holding = False
        child.publish(TOPIC, _payload(_record(5, "other")), packet_id=8)
        answer = await child.read(mqtt5.PubAckPacket)
        assert (answer.packet_id, int(answer.reason_code)) == (8, 0x87)
        assert answer.user_properties == [("refused_sender", "other")]
        child.publish(TOPIC, _payload(_record(6)), packet_id=9)
        assert await child.codes(1) == [(9, 0)]
        await child.close()


async def test_a_limit_decides_over_foreign_records(identities_file: Path) -> None:
    """MQTT 5: while the others have to come again, the answer is that of the limit."""
    async with running(identities_file=identities_file) as bench:
        bench.router.holding = True
        child = await _child5(bench.port)
        child.publish(TOPIC, _payload(_record(1), _record(2, "other")), packet_id=7)
        await bench.router.received(1)
        bench.router.settle(0, refusal=Refusal.LIMIT)
        assert await child.codes(1) == [(7, 0x97)]
        await child.close()


@pytest.mark.parametrize(
    ("options", "senders"),
    [
        ({"request_problem_info": False}, 1),
        ({"max_packet_size": 128}, 4),
        ({}, SENDERS_NAMED_MAX + 1),
    ],
)
async def test_senders_are_named_all_or_none(
    identities_file: Path, options: dict[str, Any], senders: int
) -> None:
    """MQTT 5: a child never takes those that are missing from the answer for delivered."""
    payload = _payload(*(_record(number, f"other-{number}") for number in range(senders)))
    async with running(identities_file=identities_file) as bench:
        child = await _child5(bench.port, **options)
        child.publish(TOPIC, payload, packet_id=7)
        answer = await child.read(mqtt5.PubAckPacket)
        assert int(answer.reason_code) == 0x87
        assert not answer.user_properties
        await child.close()


async def test_a_record_that_is_none_costs_that_record_alone(identities_file: Path) -> None:
    """Wrong ids, texts, bodies, sizes: dropped and counted one by one, the others are taken."""
    bad: list[dict[str, Any]] = [
        _record(1, "no id/"),
        _record(2, module=7),
        _record(3, properties={"a": 1}),
        _record(4, system=[]),
        {"device": "dev-1", "body": 5},
        {"device": "dev-1", "body_base64": "?"},
        {"device": "dev-1", "body_base64": "\u00d5"},
        _record(5, properties={"k": "v" * 3000}),
    ]
    async with running(identities_file=identities_file, message_bytes_max=2000) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, _payload(*bad, _record(9)), qos=1))
        child.send(wire.publish(TOPIC, b"junk", qos=1, packet_id=2))
        child.send(wire.publish(TOPIC, _payload(bad[0]), qos=1, packet_id=3))
        assert await child.read_pubacks(3) == [1, 2, 3]
        assert [message.body for message in bench.router.messages] == [b"body 9"]
        assert bench.dropped() == {"batch_malformed": 9, "too_large": 1}
        told = [size for _, size, reason in bench.router.told if reason == "batch_malformed"]
        assert sorted(told) == [0, 1, 2, 4, 6, 6, 6, 6, 6]
        await child.close()


async def test_a_batch_that_is_too_large_is_not_lost(identities_file: Path) -> None:
    """It may hold messages that are small enough: the connection ends, and smaller ones come."""
    payload = _payload(*(_record(n, note=str(n) * 60) for n in range(50)), compress=False)
    async with running(identities_file=identities_file, message_bytes_max=2000) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, payload, qos=1))
        assert await child.closed()
        assert bench.ended() == {"batch_too_large": 1}
        await child.close()


async def test_without_the_library_it_comes_again(
    identities_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that cannot unpack says so and closes, instead of acknowledging what it has not."""
    payload = _payload(_record(1))
    monkeypatch.setattr(batch, "zstandard", None)
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, payload, qos=1))
        assert await child.closed()
        assert bench.ended() == {"batch_unreadable": 1}
        await child.close()


@pytest.mark.parametrize(
    ("refusals", "acknowledged"),
    [((None, Refusal.INVALID), True), ((Refusal.LIMIT, Refusal.INVALID), False)],
)
async def test_refusals_of_the_store(
    identities_file: Path, refusals: tuple[Refusal | None, ...], acknowledged: bool
) -> None:
    """What can never be taken is counted; what a limit refuses comes again, by a close."""
    async with running(identities_file=identities_file, limit_pause_s=0) as bench:
        bench.router.holding = True
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, _payload(_record(1), _record(2)), qos=1))
        await bench.router.received(2)
        for refusal in refusals:
            bench.router.settle(0, refusal=refusal)
        if acknowledged:
            assert await child.read_pubacks(1) == [1]
            assert bench.dropped() == {"invalid": 1}
        else:
            assert await child.closed()
            assert bench.ended() == {"limit": 1}
        await child.close()


async def test_quality_of_service_0(identities_file: Path) -> None:
    """Taken apart likewise, and nothing is answered."""
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, _payload(_record(1), _record(2))))
        assert len(await bench.router.received(2)) == 2
        await child.pong()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await child.close()


async def test_foreign_records_with_other_qualities(identities_file: Path) -> None:
    """QoS 0 leaves nothing counted; PUBREC with a failure ends the exchange of QoS 2."""
    payload = _payload(_record(1), _record(2, "other"))
    async with running(identities_file=identities_file) as bench:
        child = await _child5(bench.port)
        child.publish(TOPIC, payload, qos=mqtt5.QoS.AT_MOST_ONCE)
        for _ in range(2):
            child.publish(TOPIC, payload, qos=mqtt5.QoS.EXACTLY_ONCE, packet_id=7)
            answer = await child.read(mqtt5.PubRecPacket)
            assert (answer.packet_id, int(answer.reason_code)) == (7, 0x87)
        assert len(bench.router.messages) == 3
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await child.close()


async def test_mqtt_5_names_the_content_in_a_property(identities_file: Path) -> None:
    """Content type as a property does as well; what is no batch is answered with its code."""
    async with running(identities_file=identities_file) as bench:
        child = await Client5.signed_in(bench.port, "child", username="child", password=b"secret")
        events = "devices/child/messages/events/"
        child.publish(events, _payload(_record(1), _record(2)), content_type=BATCH_TYPE)
        assert (await child.read(mqtt5.PubAckPacket)).reason_code == 0
        child.publish(events, b"junk", content_type=BATCH_TYPE, packet_id=2)
        assert (await child.read(mqtt5.PubAckPacket)).reason_code == 0x99
        assert [message.sender for message in bench.router.messages] == ["dev-1", "dev-1"]
        child.raw.cut()


@pytest.mark.parametrize("user", ["lone", None])
async def test_only_a_client_that_speaks_for_others_sends_batches(
    identities_file: Path, user: str | None
) -> None:
    """Even one of its own messages ends the connection; the log says what its identity lacks."""
    topic = TOPIC.replace("/child/", f"/{user or 'plain'}/")
    password = b"secret" if user else None
    async with running(identities_file=identities_file) as bench:
        client = await RawClient.signed_in(
            bench.port, user or "plain", user=user, password=password
        )
        with capture_logs() as logs:
            payload = _payload(_record(1, user or "plain"))
            client.send(wire.publish(topic, payload, qos=1))
            assert await client.closed()
        assert bench.ended() == {"foreign_identity": 1}
        assert bench.router.messages == []
        assert [each[2] for each in bench.router.told] == ["foreign_identity"]
        assert "on_behalf" in next(line["detail"] for line in logs if "detail" in line)
        await client.close()


async def test_a_batch_of_a_client_for_itself_is_refused_in_mqtt_5(identities_file: Path) -> None:
    """PUBACK 0x87 that names no sender; the connection goes on."""
    async with running(identities_file=identities_file) as bench:
        client = await Client5.signed_in(bench.port, "lone", username="lone", password=b"secret")
        topic = TOPIC.replace("/child/", "/lone/")
        client.publish(topic, _payload(_record(1, "lone")), packet_id=1)
        answer = await client.read(mqtt5.PubAckPacket)
        assert (int(answer.reason_code), list(answer.user_properties)) == (0x87, [])
        assert bench.dropped() == {"foreign_identity": 1}
        assert bench.router.messages == []
        client.publish("devices/lone/messages/events/", b"x", packet_id=2)
        assert (await client.read(mqtt5.PubAckPacket)).reason_code == 0
        client.raw.cut()


async def test_a_batch_on_the_topic_of_a_device_is_not_taken_apart(identities_file: Path) -> None:
    """A row of a device that calls itself a batch is that device's, and goes where all go."""
    topic = TOPIC.replace("/child/", "/dev-1/")
    async with running(identities_file=identities_file, message_bytes_max=2000) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(topic, _payload(_record(1, "dev-2")), qos=1))
        assert await child.read_pubacks(1) == [1]
        (message,) = bench.router.messages
        assert (message.sender, message.system["contentType"]) == ("dev-1", BATCH_TYPE)
        child.send(wire.publish(topic, b"x" * 3000, qos=1, packet_id=2))
        assert await child.read_pubacks(1) == [2]
        assert bench.dropped() == {"too_large": 1}
        bench.router.refusal = Refusal.RESERVED
        child.send(wire.publish(topic, b"x", qos=1, packet_id=3))
        assert await child.read_pubacks(1) == [3]
        assert bench.dropped() == {"too_large": 1, "reserved": 1}
        await child.close()


async def test_properties_of_a_record_are_those_of_a_bag(identities_file: Path) -> None:
    """System properties by their wire names, nothing that names a sender; marks of a hub stay."""
    properties = {"$.cdid": "x", "$.ct": "a/b", "k": "v", "iothub-MessageType": "Will"}
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, _payload(_record(1, properties=properties)), qos=1))
        (message,) = await bench.router.received(1)
        assert message.properties == {"k": "v", "iothub-MessageType": "Will"}
        assert message.system == {"contentType": "a/b", "messageId": f"{CHILD_STORE_ID}-1"}
        await child.close()


async def test_mqtt_5_says_that_a_content_type_is_of_hubs(identities_file: Path) -> None:
    """A refusal of the router has its code, and words."""
    async with running(identities_file=identities_file) as bench:
        bench.router.refusal = Refusal.RESERVED
        child = await Client5.signed_in(bench.port, "child", username="child", password=b"secret")
        child.publish("devices/dev-1/messages/events/", b"x", content_type=BATCH_TYPE)
        answer = await child.read(mqtt5.PubAckPacket)
        assert answer.reason_code == 0x99
        assert "only hubs" in answer.reason_str
        child.raw.cut()


async def test_marks_of_hubs_count_from_hubs_only(identities_file: Path) -> None:
    """A device cannot call a message its will, a child hub passes on that it was one."""
    bag = "k=v&iothub-MessageType=Will&mqtt-retain=true&edgehub-duplicate=true"
    async with running(identities_file=identities_file) as bench:
        child, plain = await _child(bench.port), await RawClient.signed_in(bench.port, "plain")
        for client, device in ((child, "dev-1"), (plain, "plain")):
            for number in (1, 2):
                topic = f"devices/{device}/messages/events/{bag}"
                client.send(wire.publish(topic, b"x", qos=1, packet_id=number))
            assert await client.read_pubacks(2) == [1, 2]
        five = await Client5.signed_in(bench.port, "five")
        five.publish(
            "devices/five/messages/events/", b"x", user_properties=[("mqtt-retain", "true")]
        )
        assert (await five.read(mqtt5.PubAckPacket)).reason_code == 0
        marked, again, *others = [message.properties for message in bench.router.messages]
        assert len(marked) == 4
        assert again == marked
        assert others == [{"k": "v"}, {"k": "v"}, {}]
        await child.close()
        await plain.close()
        five.raw.cut()


async def test_a_large_batch_leaves_others_their_turn(identities_file: Path) -> None:
    """Its messages are handed in some at a time, and what is behind it comes behind them all."""
    count = 4000
    many = _payload(*(_record(number) for number in range(count)))
    async with running(identities_file=identities_file) as bench:
        child, other = await _child(bench.port), await RawClient.signed_in(bench.port, "other")
        last = wire.publish("devices/child/messages/events/", b"last", qos=1, packet_id=2)
        child.send(wire.publish(TOPIC, many, qos=1) + last)
        await bench.router.received(1)
        other.send(wire.publish("devices/other/messages/events/", b"x", qos=1))
        assert await other.read_pubacks(1) == [1]
        assert await child.read_pubacks(2) == [1, 2]
        bodies = [message.body for message in bench.router.messages]
        await child.close()
        await other.close()
    assert bodies.index(b"x") < count
    bodies.remove(b"x")
    assert bodies == [*(b"body %d" % number for number in range(count)), b"last"]


async def test_a_child_that_goes_amid_a_batch_leaves_nothing_counted(
    identities_file: Path,
) -> None:
    """What was not handed in comes again with the whole batch, which was not acknowledged."""
    many = _payload(*(_record(number) for number in range(4000)))
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, many, qos=1) * 20)
        await bench.router.received(1)
        again = await _child(bench.port)
        await again.pong()
        assert bench.listener.statistics().unacknowledged_bytes == 0
        child.cut()
        await again.close()


async def test_records_that_have_been_here_before(identities_file: Path) -> None:
    """They are dropped and counted, the others taken, and the batch is acknowledged."""
    payload = _payload(
        _record(1, properties={"edgehub-path": f"{CHILD_STORE_ID}.{STORE_ID}"}),
        _record(2, properties={"edgehub-path": CHILD_STORE_ID}),
        _record(3, properties={"edgehub-path": CHILD_STORE_ID}, id=f"{STORE_ID}-7"),
    )
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(TOPIC, payload, qos=1, packet_id=9))
        assert await child.read_pubacks(1) == [9]
        (message,) = bench.router.messages
        assert message.properties == {"edgehub-path": f"{CHILD_STORE_ID}.{STORE_ID}"}
        assert bench.dropped() == {"loop": 2}
        assert bench.router.told == [("child", 6, "loop")] * 2
        await child.close()


async def test_a_message_that_has_been_here_before(identities_file: Path) -> None:
    """It counts as taken in both protocol versions, so that it does not come again."""
    topic = f"devices/dev-1/messages/events/%24.mid=17&edgehub-path={STORE_ID}"
    async with running(identities_file=identities_file) as bench:
        child = await _child(bench.port)
        child.send(wire.publish(topic, b"x", qos=1, packet_id=9))
        child.send(wire.publish(topic, b"x", qos=0))
        child.send(wire.publish("devices/dev-1/messages/events/", b"x", qos=1, packet_id=10))
        assert await child.read_pubacks(2) == [9, 10]
        await child.close()
        five = await Client5.signed_in(bench.port, "child", username="child", password=b"secret")
        five.publish(topic)
        assert (await five.read(mqtt5.PubAckPacket)).reason_code == 0
        assert len(bench.router.messages) == 1
        assert bench.dropped() == {"loop": 3}
        (loss,) = [each for each in bench.listener.losses() if each.total]
        assert (loss.example, loss.event) == (
            "client child: sent back a message of 'dev-1'",
            "mqtt.loop_found",
        )
        five.raw.cut()


async def test_a_path_is_believed_of_hubs_only(identities_file: Path) -> None:
    """A client without on_behalf has nothing dropped by it, and hands none on."""
    topic = f"devices/lone/messages/events/%24.mid=17&edgehub-path={STORE_ID}"
    async with running(identities_file=identities_file) as bench:
        lone = await RawClient.signed_in(bench.port, "lone", user="lone", password=b"secret")
        lone.send(wire.publish(topic, b"x", qos=1, packet_id=9))
        assert await lone.read_pubacks(1) == [9]
        assert bench.router.messages[0].properties == {}
        assert bench.dropped() == {}
        await lone.close()
