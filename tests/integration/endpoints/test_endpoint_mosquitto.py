"""The MQTT endpoint against a real Mosquitto."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from edgehub.endpoints.mqtt_payload import SingleRows
from edgehub.endpoints.mqtt_topic import TopicTemplate
from edgehub.message import UPSTREAM, FailureKind
from edgehub.storage.credentials import TlsOptions
from tests.support.memory_queue import a_row
from tests.support.mosquitto import Mosquitto
from tests.support.subscriber import subscriber
from tests.support.uplink import uplink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path) as running:
        yield running


async def test_rows_arrive_as_iot_hub_messages(broker: Mosquitto) -> None:
    """Topic, bag and body of a parent hub's dialect, in order, once each."""
    async with subscriber(broker.port) as parent, uplink(broker.port) as up:
        up.queue().put(*(a_row(number, body=b"%d" % number) for number in range(5000)))
        await parent.wait(5000)
        assert parent.bodies == [b"%d" % number for number in range(5000)]
        assert parent.arrivals[7][0] == "devices/dev-1/messages/events/%24.mid=m7&%24.cdid=dev-1"


async def test_rows_arrive_on_topics_of_a_template(broker: Mosquitto) -> None:
    """Any broker: the topic is what the template says."""
    topics = TopicTemplate("site/{device}/{property:kind}", endpoint_id=UPSTREAM, key="topic")
    payloads = SingleRows(topics, None)
    async with subscriber(broker.port) as parent, uplink(broker.port, payloads=payloads) as up:
        up.queue().put(a_row(1, properties={"kind": "alarm"}))
        await parent.wait(1)
        assert parent.arrivals[0][0] == "site/dev-1/alarm"


async def test_a_broker_that_is_away_at_the_start(tmp_path: Path) -> None:
    """Rows wait, the link comes with the broker, and the drain starts by itself (L-04, L-08)."""
    broker = Mosquitto(tmp_path)
    try:
        async with uplink(broker.port) as up:
            queue = up.queue()
            queue.put(*(a_row(number) for number in range(500)))
            await up.until(lambda: bool(up.pump.statistics().reason))
            assert up.endpoint.state == "connecting"
            await asyncio.to_thread(broker.start)
            await up.until(lambda: len(queue.confirmed) == 500)
    finally:
        broker.stop()


async def test_a_restart_in_mid_flight_loses_nothing(broker: Mosquitto) -> None:
    """The broker is killed while rows flow: each row is confirmed, in the sender's order."""
    async with uplink(broker.port) as up:
        queue = up.queue()
        queue.put(*(a_row(number, body=b"x" * 2000) for number in range(6000)))
        await up.until(lambda: len(queue.confirmed) > 300)
        await asyncio.to_thread(broker.stop)
        await up.until(lambda: up.endpoint.state != "up")
        assert len(queue.confirmed) < 6000
        assert queue.in_flight == {}
        await asyncio.to_thread(broker.start)
        up.pump.retry_now()
        await up.until(lambda: len(queue.confirmed) == 6000)
        assert queue.confirmed == list(range(6000))


async def test_a_wrong_password_parks_until_it_is_mended(tmp_path: Path) -> None:
    """Mosquitto's refusal parks the endpoint; a mended file and an operator's word connect it."""
    secret = tmp_path / "password"
    secret.write_text("wrong\n")
    with Mosquitto(tmp_path, users={"hub": "right"}) as broker:
        async with uplink(broker.port, username="hub", password_file=secret) as up:
            queue = up.queue()
            queue.put(a_row(1))
            await up.until(lambda: up.endpoint.state == "parked")
            secret.write_text("right\n")
            up.pump.retry_now()
            await up.until(lambda: queue.confirmed == [1])


async def test_a_missing_password_file_parks_with_its_name(tmp_path: Path) -> None:
    """The reason says which file is missing."""
    missing = tmp_path / "nowhere"
    with Mosquitto(tmp_path) as broker:
        async with uplink(broker.port, username="hub", password_file=missing) as up:
            await up.until(lambda: up.endpoint.state == "parked")
            assert str(missing) in up.pump.statistics().reason


async def test_device_bound_messages_survive_until_they_are_stored(
    broker: Mosquitto,
) -> None:
    """Not acknowledged while the hub has not stored it; the broker sends it again."""
    taken: list[tuple[bytes, bool]] = []

    def accept(_target, body, *_properties, dup, done, **_) -> None:
        taken.append((body, dup))
        if dup:
            done()

    async with uplink(broker.port, device_bound=accept) as up:
        up.endpoint.subscribe_device("d1")
        await up.until(lambda: up.endpoint.state == "up")
        async with aiomqtt.Client("127.0.0.1", broker.port) as sender:
            while not taken:
                await sender.publish("devices/d1/messages/devicebound/a=b", b"go", qos=1)
                await asyncio.sleep(0.05)
    first = len(taken)
    async with uplink(broker.port, device_bound=accept) as up:
        await up.until(lambda: len(taken) > first)
    assert taken == [(b"go", False)] * first + [(b"go", True)]


def make_certificates(folder: Path) -> None:
    """Create a private authority and certificates for the broker and the hub."""
    subject = "/CN=127.0.0.1"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    make_ca = [*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority"]
    subprocess.run(make_ca, cwd=folder, check=True, capture_output=True)
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("broker", "hub"):
        request = [*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject]
        subprocess.run(request, cwd=folder, check=True, capture_output=True)
        sign = ["openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey"]
        sign += ["ca.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2"]
        sign += ["-extfile", "san"]
        subprocess.run(sign, cwd=folder, check=True, capture_output=True)


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    """Both sides prove themselves; large and many rows pass through the encryption in order."""
    await asyncio.to_thread(make_certificates, tmp_path)
    lines = [f"cafile {tmp_path}/ca.pem", f"certfile {tmp_path}/broker.pem"]
    lines += [f"keyfile {tmp_path}/broker.key", "require_certificate true"]
    tls = TlsOptions(
        ca_file=tmp_path / "ca.pem",
        certificate_file=tmp_path / "hub.pem",
        key_file=tmp_path / "hub.key",
    )
    with Mosquitto(tmp_path, *lines) as broker:
        async with uplink(broker.port, tls=tls) as up:
            queue = up.queue()
            queue.put(a_row(0, body=b"x" * 250_000), *(a_row(number) for number in range(1, 3000)))
            await up.until(lambda: len(queue.confirmed) == 3000)
            assert queue.confirmed == list(range(3000))


async def test_a_peer_that_cannot_prove_itself_parks(tmp_path: Path) -> None:
    """A certificate of an unknown authority needs a person."""
    await asyncio.to_thread(make_certificates, tmp_path)
    lines = [f"certfile {tmp_path}/broker.pem", f"keyfile {tmp_path}/broker.key"]
    with Mosquitto(tmp_path, *lines) as broker:
        async with uplink(broker.port, tls=TlsOptions()) as up:
            await up.until(lambda: up.endpoint.state == "parked")
            assert up.pump.statistics().reason.startswith("certificate of the peer: ")


async def test_a_tls_file_that_is_missing_parks_with_its_name(tmp_path: Path) -> None:
    """The reason names the files."""
    with Mosquitto(tmp_path) as broker:
        async with uplink(broker.port, tls=TlsOptions(ca_file=tmp_path / "no.pem")) as up:
            await up.until(lambda: up.endpoint.state == "parked")
            assert "no.pem" in up.pump.statistics().reason


async def test_a_broker_that_closes_over_one_message(tmp_path: Path) -> None:
    """P-10: Mosquitto closes over a packet that is too large; that row ends, the others flow."""
    with Mosquitto(tmp_path, "max_packet_size 1000") as broker:
        async with subscriber(broker.port) as parent, uplink(broker.port) as up:
            queue = up.queue()
            small = [*range(1, 20), *range(21, 40)]
            queue.put(
                *(a_row(number, body=b"%d" % number) for number in range(1, 20)),
                a_row(20, body=bytes(5000)),
                *(a_row(number, body=b"%d" % number) for number in range(21, 40)),
            )

            def is_over() -> bool:
                up.pump.retry_now()  # back-off is tried elsewhere
                return bool(queue.dead) and len(queue.confirmed) == len(small)

            await up.until(is_over)
            assert [(offset, kind) for offset, kind, _ in queue.dead] == [
                (20, FailureKind.REJECTED)
            ]
            assert "the message is too large" in queue.dead[0][2]
            assert queue.confirmed == small
            await parent.wait(len(small))
            assert up.pump.statistics().failures[FailureKind.CLOSED] >= 3
