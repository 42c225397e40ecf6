"""Devices and collectors as users have them: paho-mqtt clients with a record of what they saw."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from urllib.parse import parse_qsl

import paho.mqtt.client as paho

CONNECT_TIMEOUT_S = 10.0

Key = tuple[str, str, int]
"""What names a message: device, kind and number."""


def key_of(body: bytes) -> Key:
    """Return what a message's body says that it is."""
    device_id, kind, number, _ = body.decode().split("|", 3)
    return device_id, kind, int(number)


class Device:
    """Publishes numbered messages with QoS 1 and remembers which were acknowledged."""

    def __init__(self, device_id: str, port: int, *, in_flight_max: int = 50) -> None:
        self.device_id = device_id
        self.acked: set[tuple[str, int]] = set()
        self.published: list[tuple[str, int]] = []
        self._pending: dict[int, tuple[str, int]] = {}
        self._early: set[int] = set()
        self._changed = threading.Condition()
        self._connected = False
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=device_id)
        self._client.max_inflight_messages_set(in_flight_max)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_publish = self._on_publish
        self._client.on_connect = self._on_connect
        self.disconnected = threading.Event()
        self._client.on_disconnect = lambda *_: self.disconnected.set()
        self._client.connect_async("127.0.0.1", port)
        self._client.loop_start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._connected, CONNECT_TIMEOUT_S)

    def publish(self, kind: str, number: int, *, size: int = 200) -> None:
        """Publish message `number` of `kind`; does not wait for the acknowledgement."""
        body = f"{self.device_id}|{kind}|{number}|".ljust(size, "x").encode()
        topic = f"devices/{self.device_id}/messages/events/kind={kind}"
        # paho calls back with its own lock held, so ours must not be held while it publishes.
        info = self._client.publish(topic, body, qos=1)
        with self._changed:
            self.published.append((kind, number))
            if info.mid in self._early:
                self._early.discard(info.mid)
                self.acked.add((kind, number))
            else:
                self._pending[info.mid] = (kind, number)

    def publish_raw(self, topic: str, body: bytes) -> paho.MQTTMessageInfo:
        """Publish anything anywhere with QoS 1, after the numbered messages were acknowledged."""
        return self._client.publish(topic, body, qos=1)

    @property
    def in_flight(self) -> int:
        """Return how many messages are not acknowledged yet."""
        return len(self._pending)

    def wait_in_flight_below(self, count: int, timeout_s: float) -> bool:
        """Wait until fewer than `count` messages are unacknowledged."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._pending) < count, timeout_s)

    def close(self) -> None:
        """Disconnect cleanly."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, *_arguments: object) -> None:
        with self._changed:
            self._connected = True
            self._changed.notify_all()

    def _on_publish(self, _client: object, _data: object, mid: int, *_rest: object) -> None:
        with self._changed:
            key = self._pending.pop(mid, None)
            if key is None:
                self._early.add(mid)
            else:
                self.acked.add(key)
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One delivery at the upstream broker."""

    device_id: str
    kind: str
    number: int
    message_id: str


class Collector:
    """Subscribes at the upstream broker and records every delivery in order."""

    def __init__(self, port: int) -> None:
        self.arrivals: list[Arrival] = []
        self.seen: set[tuple[str, str, int]] = set()
        self.changed = threading.Condition()
        self._subscribed = threading.Event()
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id="collector", clean_session=False
        )
        self._client.on_connect = lambda client, *_: client.subscribe("devices/#", qos=1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(CONNECT_TIMEOUT_S)

    def wait_for(self, wanted: set[tuple[str, str, int]], timeout_s: float) -> set[object]:
        """Wait until all `wanted` (device, kind, number) arrived; gives what is missing."""
        with self.changed:
            self.changed.wait_for(lambda: wanted <= self.seen, timeout_s)
            return set(wanted - self.seen)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        key = key_of(message.payload)
        bag = dict(parse_qsl(message.topic.rsplit("/", 1)[1]))
        with self.changed:
            self.arrivals.append(Arrival(*key, bag.get("$.mid", "")))
            self.seen.add(key)
            self.changed.notify_all()
