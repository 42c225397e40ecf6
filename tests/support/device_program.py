"""A device that may be killed at any moment: a program of its own.

It takes messages and calls of methods, and reports the patches of a file one after another. What it
takes is written down before it is acknowledged or answered, and a patch once it is acknowledged, so
that a device that starts again goes on behind it. Arguments: device id, port, file of its lines,
and the file with patches if there is one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import parse_qs

import paho.mqtt.client as paho

METHODS = "$iothub/methods/POST/"
REPORTED = "$iothub/twin/PATCH/properties/reported/"
ANSWERS = "$iothub/twin/res/"
DONE = f"{ANSWERS}204/"
RECONNECT_S = (0.4, 0.8)


class Device:
    """The device.

    Args:
        device_id: Its name.
        file: Where it writes down what it took, a JSON list a line.
        patches: To be reported, in this order.
    """

    def __init__(self, device_id: str, file: Path, patches: list[dict]) -> None:
        self._id = device_id
        self._lines = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        taken = [json.loads(line) for line in file.read_text().splitlines()]
        self._next = sum(kind == "patch" for kind, _ in taken)
        self._patches = patches
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=device_id, clean_session=True
        )
        self.client.reconnect_delay_set(*RECONNECT_S)
        self.client.on_connect = self._connected
        self.client.on_subscribe = lambda *_: self._report()
        self.client.on_message = self._took

    def _connected(self, client, *_) -> None:
        filters = (f"devices/{self._id}/messages/devicebound/#", METHODS + "#", ANSWERS + "#")
        client.subscribe([(each, 1) for each in filters])

    def _took(self, client, _data, message) -> None:
        body = json.loads(message.payload) if message.payload else None
        request_id = parse_qs(message.topic.partition("?")[2]).get("$rid", [""])[0]
        if message.topic.startswith(METHODS):
            self._write("call", body)
            answer = json.dumps([self._id, body])
            client.publish(f"$iothub/methods/res/200/?$rid={request_id}", answer)
        elif not message.topic.startswith(ANSWERS):
            assert message.topic.startswith(f"devices/{self._id}/messages/devicebound/")
            self._write("message", body)
        elif message.topic.startswith(DONE) and request_id == str(self._next):
            self._write("patch", self._next)
            self._next += 1
            self._report()

    def _report(self) -> None:
        if self._next < len(self._patches):
            body = json.dumps(self._patches[self._next])
            self.client.publish(f"{REPORTED}?$rid={self._next}", body)

    def _write(self, kind: str, body: object) -> None:
        os.write(self._lines, json.dumps([kind, body]).encode() + b"\n")


def main(device_id: str, port: str, file: str, patches: str | None = None) -> None:
    """Run until killed."""
    path = Path(file)
    path.touch()
    found = [] if patches is None else json.loads(Path(patches).read_text())
    device = Device(device_id, path, found)
    device.client.connect_async("127.0.0.1", int(port))
    device.client.loop_forever(retry_first_connection=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
