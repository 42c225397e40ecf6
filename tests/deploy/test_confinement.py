"""What the unit forbids and everybody can try: no memory that is both writable and executable."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from tests.support.certificates import Authority
from tests.support.daemon import Daemon
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port
from tests.support.subscriber import subscriber

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parents[1] / "support" / "confined_daemon.py"
EXIT_CANNOT = 77


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def confined() -> None:
    """Skip where the kernel cannot."""
    tried = subprocess.run([sys.executable, str(PROGRAM), "version"], check=False, timeout=15)
    if tried.returncode == EXIT_CANNOT:
        pytest.skip("this kernel has no PR_SET_MDWE")


@pytest.fixture
def daemon(tmp_path: Path, broker: Mosquitto) -> Iterator[Daemon]:
    """Return a confined hub with everything that brings native code: TLS, HTTP, an upstream."""
    certificate, key = Authority(tmp_path).server()
    made = Daemon(
        tmp_path,
        f'data_dir = "data"\n[mqtt]\nport = {free_port()}\ntls_port = {free_port()}\n'
        f'certificate_file = "{certificate}"\nkey_file = "{key}"\n[http]\nport = {free_port()}\n'
        f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {broker.port}\ntopic = "up"\n'
        '[log]\nformat = "json"\n',
        program=[str(PROGRAM)],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    made.start()
    yield made
    made.close()


def post(url: str, body: bytes) -> int:
    """Post a message and give the answer's code."""
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10) as answer:
        return int(answer.status)


@pytest.mark.timeout(40)
@pytest.mark.usefixtures("confined")
async def test_no_part_of_the_hub_makes_code_at_run_time(
    daemon: Daemon, broker: Mosquitto, tmp_path: Path
) -> None:
    """Event loop, TLS, HTTP parser, JSON, validation and SQLite all work without."""
    started = next(line for line in daemon.log if line.get("event") == "hub.started")
    async with subscriber(broker.port) as taker:
        trust = aiomqtt.TLSParameters(ca_certs=str(tmp_path / "authority.pem"))
        port = started["mqtt_tls_port"]
        async with aiomqtt.Client(
            "127.0.0.1", port, identifier="pump-7", tls_params=trust
        ) as device:
            await device.publish("devices/pump-7/messages/events/", b"by TLS", qos=1)
        url = f"http://127.0.0.1:{started['http_port']}/devices/pump-8/messages/events"
        status = await asyncio.to_thread(post, f"{url}?api-version=2020-03-13", b"by HTTP")
        assert status == 204
        await taker.wait(2, 20)
    assert sorted(taker.bodies) == [b"by HTTP", b"by TLS"]
    assert daemon.stop() == 0


@pytest.mark.usefixtures("confined")
def test_decoders_run_without_code_made_at_run_time(tmp_path: Path) -> None:
    """Their engine interprets; its process inherits the confinement."""
    (tmp_path / "sum.js").write_text(
        "function decodeUplink(i) { return { data: { n: i.bytes.reduce((a, b) => a + b, 0) } } }",
        "utf-8",
    )
    source = (
        "from edgehub.decoders.scripts import call_once, read_script\n"
        "from pathlib import Path\n"
        "given = {'bytes': [1, 2, 3], 'fPort': 1, 'recvTime': 0}\n"
        "print(call_once(read_script(Path('sum.js')), 'decodeUplink', given)['data'])\n"
    )
    confinement = PROGRAM.read_text("utf-8").partition("# After the call")[0]
    done = subprocess.run(
        [sys.executable, "-c", confinement + source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (0, "{'n': 6}\n"), done.stderr
