"""compose.yaml: its shape, and its services as processes with the very files that it mounts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest
import yaml

from tests.support.daemon import Daemon
from tests.support.dockerfile import environment, read_stages, values
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port
from tests.support.subscriber import subscriber

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HUBS = ["gateway", "parent"]
IMAGE = read_stages(FOLDER / "Dockerfile")[-1]
GUIDE = (FOLDER.parent / "docs" / "howto" / "container.md").read_text("utf-8")


@pytest.mark.parametrize("name", HUBS)
def test_a_hub_may_do_nothing_but_its_work(name: str) -> None:
    """Read-only root, no capabilities, bounds; the volume and two tmpfs are writable."""
    hub = SERVICES[name]
    variables = environment(IMAGE)
    assert hub["read_only"] is True
    assert hub["cap_drop"] == ["ALL"]
    assert hub["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit"} <= hub.keys()
    user, _, group = values(IMAGE, "USER")[0].partition(":")
    runtime = f"{variables['RUNTIME_DIRECTORY']}:uid={user},gid={group},mode=0700"
    assert hub["tmpfs"] == [runtime, "/tmp"]
    writable = [volume for volume in hub["volumes"] if not volume.endswith(":ro")]
    assert [volume.split(":")[1] for volume in writable] == [variables["STATE_DIRECTORY"]]
    assert {volume.split(":")[0] for volume in writable} <= COMPOSE["volumes"].keys()
    assert not hub.keys() & {"privileged", "user", "entrypoint", "command", "devices", "cap_add"}


def test_what_is_mounted_is_there() -> None:
    """Paths of the host, and the Dockerfile, exist; only the secret is left to make."""
    mounts = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service["volumes"]
        if volume.startswith(".")
    ]
    assert len(mounts) == 3
    assert [mount for mount in mounts if not (FOLDER / mount).exists()] == []
    build = SERVICES["parent"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
    assert [secret["file"] for secret in COMPOSE["secrets"].values()] == [
        "./secrets/gateway-7-password"
    ]


def test_only_the_gateway_is_reached_from_outside() -> None:
    """The broker takes anybody, so nobody but the parent may get to it."""
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]
    internal = {name for name, network in COMPOSE["networks"].items() if network.get("internal")}
    assert set(SERVICES["mosquitto"]["networks"]) <= internal
    assert set(SERVICES["gateway"]["networks"]) & set(SERVICES["mosquitto"]["networks"]) == set()


class Containers:
    """The two hubs as processes: the image's variables, with folders and addresses of this host."""

    def __init__(self, folder: Path, mosquitto: Mosquitto) -> None:
        self.folder = folder
        self.broker = mosquitto
        self.ports = {name: free_port() for name in HUBS}
        upstream = {"parent": mosquitto.port, "gateway": self.ports["parent"]}
        self.variables = {
            name: self._variables(name, self.ports[name], upstream[name]) for name in HUBS
        }
        self.hubs = {name: Daemon(folder / name, None, env=self.variables[name]) for name in HUBS}

    def run(self, name: str, *words: str) -> str:
        """Run a command as `docker compose run` or `exec` does."""
        done = subprocess.run(
            [sys.executable, "-m", "edgehub", *words],
            cwd=self.folder / name,
            env={**os.environ, **self.variables[name]},
            capture_output=True,
            text=True,
            check=False,
            timeout=15,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _variables(self, name: str, port: int, upstream: int) -> dict[str, str]:
        root = self.folder / name
        secrets = root / "secrets"
        secrets.mkdir(parents=True)
        for secret in SERVICES[name]["secrets"]:
            (secrets / secret["target"]).write_text("correct horse", "utf-8")
        (config,) = [v.split(":")[0] for v in SERVICES[name]["volumes"] if "/etc/edgehub" in v]
        (root / "data").mkdir()
        places = {
            "STATE_DIRECTORY": root / "data",
            "RUNTIME_DIRECTORY": root / "data",
            "CONFIGURATION_DIRECTORY": FOLDER / config,
            "CREDENTIALS_DIRECTORY": secrets,
        }
        assert places.keys() <= environment(IMAGE).keys()
        return {
            **{key: str(place) for key, place in places.items()},
            "EDGEHUB_MQTT__HOST": "127.0.0.1",
            "EDGEHUB_MQTT__PORT": str(port),
            "EDGEHUB_MQTT__IDENTITIES_FILE": str(root / "data" / "identities"),
            "EDGEHUB_UPSTREAM__HOST": "127.0.0.1",
            "EDGEHUB_UPSTREAM__PORT": str(upstream),
        }


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    """Return the hubs beside a broker that has the rules of `mosquitto.conf`."""
    lines = (FOLDER / "mosquitto.conf").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith(("#", "listener"))]
    with Mosquitto(tmp_path / "broker") as broker:
        assert set(rules) <= {"allow_anonymous true", "persistence false"}
        made = Containers(tmp_path, broker)
        yield made
        for hub in made.hubs.values():
            hub.close()


@pytest.mark.e2e
@pytest.mark.timeout(60)
async def test_a_message_passes_both_hubs_to_the_broker(containers: Containers) -> None:
    """The guide's own commands make the identities; the secret is the only thing both share."""
    add = r"docker compose run \S+ (\w+) (identity add .*)$"
    for name, command in re.findall(add, GUIDE, re.MULTILINE):
        words = command.replace("/run/secrets", str(containers.folder / name / "secrets"))
        containers.run(name, *(word.strip("'") for word in words.split()))
    for hub in containers.hubs.values():
        hub.start()
    async with subscriber(containers.broker.port) as taker:
        async with aiomqtt.Client(
            "127.0.0.1",
            containers.ports["gateway"],
            identifier="pump-7",
            username="pump-7",
            password="correct horse",
        ) as device:
            await device.publish("devices/pump-7/messages/events/kind=alarm", b"9.1", qos=1)
        await taker.wait(1, 20)
    assert taker.arrivals == [("site-1/pump-7", b"9.1")]
    for name, hub in containers.hubs.items():
        containers.run(name, "status", "--quiet")
        assert hub.stop() == 0
