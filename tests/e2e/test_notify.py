"""The daemon as systemd hears it: a real process, a real notification socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.notify_socket import NotifySocket
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.mosquitto import Mosquitto

    Make = Callable[..., Daemon]

pytestmark = pytest.mark.e2e

FAULTY = Path(__file__).parents[1] / "support" / "faulty_daemon.py"
WATCHDOG_S = 1.0
# Three times the watchdog's time without a message is silence.
SILENCE_S = 3 * WATCHDOG_S


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[NotifySocket]:
    """Return the service manager's end."""
    with NotifySocket(str(tmp_path / "notify")) as bound:
        yield bound


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a daemon which tells a socket, with or without its faults."""
    made: list[Daemon] = []

    def build(heard: NotifySocket, *, upstream: int | None = None, faulty: bool = False) -> Daemon:
        section = f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {upstream}\n'
        daemon = Daemon(
            tmp_path,
            f'data_dir = "data"\n[mqtt]\nport = {free_port()}\n{section if upstream else ""}'
            '[log]\nformat = "json"\n',
            env={
                "NOTIFY_SOCKET": heard.address,
                "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
            program=[str(FAULTY)] if faulty else ["-m", "edgehub"],
        )
        made.append(daemon)
        return daemon

    yield build
    for daemon in made:
        daemon.close()


def falls_silent(heard: NotifySocket) -> bool:
    """Return whether nothing more comes, after what was on its way."""
    for _ in range(3):
        try:
            heard.receive(SILENCE_S)
        except TimeoutError:
            return True
    return False


def test_a_life_from_ready_to_stopping(heard: NotifySocket, make: Make) -> None:
    """READY=1 when devices can connect, reloads as one datagram, STOPPING=1 with more time."""
    daemon = make(heard).start()
    ready = heard.wait_for("READY", "1")
    assert ready["STATUS"] == "collecting, no upstream named, 0 waiting"
    Device("pump-7", daemon.mqtt_port).close()

    daemon.signal(signal.SIGHUP)
    assert int(heard.wait_for("RELOADING", "1")["MONOTONIC_USEC"]) > 0
    heard.wait_for("READY", "1")
    heard.wait_for("WATCHDOG", "1")

    daemon.signal(signal.SIGTERM)
    stopping = heard.wait_for("STOPPING", "1")
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 20_000_000
    assert daemon.wait() == 0
    states = [m for m in heard.messages if m.keys() & {"READY", "RELOADING", "STOPPING"}]
    assert [next(iter(m)) for m in states] == ["READY", "RELOADING", "READY", "STOPPING"]


def test_nothing_is_ready_before_the_heads_listen(heard: NotifySocket, make: Make) -> None:
    """A hub that cannot start says so by its exit code alone."""
    daemon = make(heard)
    taken = make(heard).start()
    port_line = f"port = {taken.mqtt_port}"
    daemon.config.write_text(f'data_dir = "other"\n[mqtt]\n{port_line}\n', "utf-8")
    heard.wait_for("READY", "1")
    ended = subprocess.run(
        [sys.executable, "-m", "edgehub", "run", "--config", str(daemon.config)],
        env={**os.environ, **daemon.env},
        capture_output=True,
        check=False,
        timeout=15,
    )
    assert ended.returncode == 3
    taken.close()
    assert [m for m in heard.waiting() if "READY" in m] == []


def test_an_abstract_socket_is_heard(make: Make) -> None:
    """What systemd gives where the file system is not to be relied on."""
    with NotifySocket(f"@edgehub-e2e-{os.getpid()}") as heard:
        daemon = make(heard).start()
        heard.wait_for("READY", "1")
        assert daemon.stop() == 0


def test_a_blocked_loop_ends_the_pings(heard: NotifySocket, make: Make) -> None:
    """The watchdog kills it; SIGABRT leaves word of where it hung."""
    daemon = make(heard, faulty=True).start()
    heard.wait_for("WATCHDOG", "1")
    daemon.signal(signal.SIGUSR1)
    assert falls_silent(heard)
    daemon.signal(signal.SIGABRT)
    assert daemon.wait() == -signal.SIGABRT
    daemon.wait_text("faulty_daemon.py")


@pytest.mark.timeout(40)
def test_a_pump_that_stands_still_ends_the_pings(
    heard: NotifySocket, make: Make, broker: Mosquitto
) -> None:
    """The loop works and the status goes on, but rows that could leave do not."""
    daemon = make(heard, upstream=broker.port, faulty=True).start()
    daemon.wait_event("endpoint.link_up")
    device = Device("pump-7", daemon.mqtt_port)
    device.publish("x", 0)
    assert device.wait_in_flight_below(1, 10)
    daemon.wait_until(lambda: daemon.call("queue list")["queues"][0]["sent"] == 1, 10)
    heard.wait_for("WATCHDOG", "1")

    daemon.signal(signal.SIGUSR2)
    device.publish("x", 1)
    assert device.wait_in_flight_below(1, 10)
    assert daemon.wait_event("pump.stalled")["endpoint_id"] == "upstream"
    heard.waiting()
    silent = [heard.receive(SILENCE_S) for _ in range(6)]
    assert [m for m in silent if "WATCHDOG" in m] == []
    assert all("1 waiting" in m["STATUS"] for m in silent)
    status = daemon.call("status")
    assert status["stalled"] == ["upstream"]
    assert "stood still" in status["warnings"][0]
    assert daemon.edgehub("status", "--quiet").returncode == 1
    device.close()


@pytest.mark.timeout(40)
def test_an_upstream_that_is_away_feeds_the_watchdog(heard: NotifySocket, make: Make) -> None:
    """A hub that cannot deliver works: a new start would help nobody."""
    daemon = make(heard, upstream=free_port()).start()
    device = Device("pump-7", daemon.mqtt_port)
    device.publish("x", 0)
    assert device.wait_in_flight_below(1, 10)
    heard.wait_for("STATUS", "collecting, not sending, 1 waiting")
    # Longer than the time after which a pump stands still.
    for _ in range(8):
        heard.wait_for("WATCHDOG", "1")
    device.close()
    assert daemon.stop() == 0
