"""`edgehub session` against a running hub."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest

from tests.support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

SETTINGS = 'hub_id = "hub-1"\ndata_dir = "data"\n[log]\nformat = "json"\n[mqtt]\nport = 0\n'


def run(hub: Daemon, *arguments: str, code: int = 0) -> str:
    """Run a command of `edgehub session`; returns what it printed."""
    done = hub.edgehub("session", *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def connected(hub: Daemon, client_id: str, *, clean: bool) -> paho.Client:
    """Connect a client of MQTT 3.1.1 and subscribe it."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, clean_session=clean)
    client.connect("127.0.0.1", hub.mqtt_port)
    client.loop_start()
    client.subscribe(f"te/{client_id}", qos=1)
    # Acknowledged behind the subscription, which is granted by then.
    client.publish("te/none", b"", qos=1).wait_for_publish(10)
    return client


def left(client: paho.Client) -> None:
    """Disconnect a client."""
    client.disconnect()
    client.loop_stop()


def test_sessions_are_listed_and_ended(tmp_path: Path) -> None:
    """What waits for a client goes with its session, for good; a second end finds nothing."""
    with contextlib.closing(Daemon(tmp_path, SETTINGS).start()) as hub:
        left(connected(hub, "absent", clean=False))
        here = connected(hub, "here", clean=True)
        for _ in range(3):
            here.publish("te/absent", b"x" * 100, qos=1).wait_for_publish(10)
        first, second = json.loads(run(hub, "list", "--json"))["sessions"]
        assert first.pop("absent_s") >= 0
        assert first == {
            "client_id": "absent",
            "anonymous": True,
            "connected": False,
            "stored": True,
            "expiry_s": None,
            "subscriptions": 1,
            "waiting": 3,
            "waiting_bytes": 3 * (100 + len("te/absent") + 256),
        }
        assert (second["client_id"], second["connected"], second["subscriptions"]) == (
            "here",
            True,
            1,
        )
        lines = run(hub, "list").splitlines()
        assert lines[1].split()[:5] == ["absent", "anonymous", "absent", "for", "0"]
        page = json.loads(run(hub, "list", "--limit", "1", "--json"))
        assert (len(page["sessions"]), page["next"]) == (1, "absent")
        page = json.loads(run(hub, "list", "--limit", "1", "--after", "absent", "--json"))
        assert (page["sessions"][0]["client_id"], page["next"]) == ("here", None)
        assert "give --yes" in run(hub, "end", "absent", code=2)
        assert run(hub, "end", "absent", "--yes") == "ended: absent, 3 messages dropped\n"
        assert run(hub, "end", "absent", "--yes", code=1) == "edgehub: no session of absent\n"
        hub.kill()
        left(here)
        hub.start()
        assert json.loads(run(hub, "list", "--json")) == {"sessions": [], "next": None}


def test_the_end_of_a_session_closes_its_client(tmp_path: Path) -> None:
    """A client that is connected is closed, and finds nothing of its session when it is back."""
    with contextlib.closing(Daemon(tmp_path, SETTINGS).start()) as hub:
        client = connected(hub, "c", clean=False)
        answer = json.loads(run(hub, "end", "c", "--yes", "--json"))
        assert answer == {"client_id": "c", "ended": True, "dropped": 0}
        left(client)
        again = paho.Client(paho.CallbackAPIVersion.VERSION2, "c", clean_session=False)
        found: list[bool] = []
        again.on_connect = lambda _c, _u, flags, _r, _p: found.append(flags.session_present)
        again.connect("127.0.0.1", hub.mqtt_port)
        again.loop_start()
        again.publish("te/none", b"", qos=1).wait_for_publish(10)
        assert found == [False]
        left(again)
