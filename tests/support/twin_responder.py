"""Twins at a plain broker: a responder that answers in the MQTT dialect of Azure IoT Hub."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

import paho.mqtt.client as paho

if TYPE_CHECKING:
    from types import TracebackType

QUESTION = re.compile(
    r"\$iothub/twin/(GET|PATCH/properties/reported)/\?\$rid=((.+)\.[0-9a-f]+\.\d+)"
)


class TwinResponder:
    """Keeps twins by device; the device stands in front of the question's id.

    A broker tells nobody who has published, and shows answers to all that listen.

    Args:
        port: Of the broker.
        knows_all: A device has an empty twin until it is written; else it has none.
    """

    def __init__(self, port: int, *, knows_all: bool = True) -> None:
        self.knows_all = knows_all
        self.twins: dict[str, dict[str, dict[str, Any]]] = {}
        self.asked: list[tuple[str, str]] = []
        self.status: int | None = None
        """Answer with this status instead of what is true."""
        self.is_silent = False
        self._ready = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="twins")
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._ready.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def twin(self, device_id: str) -> dict[str, dict[str, Any]]:
        """Return the twin of a device, made if need be."""
        return self.twins.setdefault(
            device_id, {"desired": {"$version": 1}, "reported": {"$version": 1}}
        )

    def close(self) -> None:
        """Answer no more."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, *_: object) -> None:
        client.subscribe("$iothub/twin/GET/#")
        client.subscribe("$iothub/twin/PATCH/#")

    def _on_message(self, client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        found = QUESTION.fullmatch(message.topic)
        if found is None or self.is_silent:
            return
        kind, rid, quoted = found.groups()
        device_id = unquote(quoted)
        self.asked.append((kind, device_id))
        status, body, version = self._answer(kind, device_id, message.payload)
        status = self.status or status
        client.publish(f"$iothub/twin/res/{status}/?$rid={rid}{version}", body)

    def _answer(self, kind: str, device_id: str, patch: bytes) -> tuple[int, bytes, str]:
        if not self.knows_all and device_id not in self.twins:
            return 404, b"", ""
        twin = self.twin(device_id)
        if kind == "GET":
            return 200, json.dumps(twin).encode(), ""
        merge(twin["reported"], json.loads(patch))
        twin["reported"]["$version"] += 1
        return 204, b"", f"&$version={twin['reported']['$version']}"


def merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    """Merge a JSON merge patch into an object."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
