"""An image built by buildah without a daemon, and a container of it: namespaces and a chroot.

Owns the storage of the images, in a folder of the test. Registries are never asked: the base is a
Debian root, packages come from a folder of wheels.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.devices import Device
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

BASE = "localhost/debian-with-python"
BUILD_TIMEOUT_S = 900
RUN_TIMEOUT_S = 300
STOP_TIMEOUT_S = 45

# What the compose file asks of the engine: a read-only root, a volume, two folders in memory.
_ENTER = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -t tmpfs -o mode=0700,uid=${OWNER%:*},gid=${OWNER#*:} tmpfs "$ROOT/run/edgehub"
mount --bind "$VOLUME" "$ROOT/var/lib/edgehub"
exec chroot --userspec="$OWNER" --groups= "$ROOT" "$@"
"""


# Every engine gives its containers a hosts file; a Debian root of its own has none.
_ENTER_ONCE = """
set -e
ip link set lo up
echo 127.0.0.1 localhost > "$ROOT/etc/hosts"
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -t tmpfs tmpfs "$ROOT/mnt"
mkdir "$ROOT/mnt/in" "$ROOT/mnt/out"
mount --bind "$IN" "$ROOT/mnt/in"
mount -o remount,bind,ro "$ROOT/mnt/in"
mount --bind "$OUT" "$ROOT/mnt/out"
exec chroot --userspec="$OWNER" --groups= "$ROOT" "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """What an image is made of, by paths in the checkout.

    Attributes:
        name: Its name here.
        file: The Dockerfile.
        ignored: What of the checkout its build does not see.
    """

    name: str
    file: str
    ignored: str


HUB = Image("localhost/edgehub:test", "deploy/Dockerfile", ".dockerignore")
REPORT = Image(
    "localhost/edgehub-report:test",
    "deploy/report.Dockerfile",
    "deploy/report.Dockerfile.dockerignore",
)


class Builder:
    """buildah with a storage of its own.

    Args:
        folder: For images and containers.
    """

    def __init__(self, folder: Path) -> None:
        self._command = [
            "buildah",
            "--storage-driver=vfs",
            f"--root={folder / 'graph'}",
            f"--runroot={folder / 'run'}",
        ]

    def run(self, *arguments: str) -> str:
        """Run buildah and give what it prints."""
        done = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def make_base(self, root: Path) -> None:
        """Make an image of a Debian root."""
        container = self.run("from", "scratch")
        self.run("add", "--quiet", container, str(root), "/")
        self.run("commit", "--quiet", "--rm", container, BASE)

    def build(
        self, checkout: Path, wheels: Path, pip_settings: Path, *, of: Image = HUB
    ) -> dict[str, Any]:
        """Build a Dockerfile on that base and give the image's configuration."""
        pip_settings.write_text("[global]\nno-index = true\nfind-links = /mnt\n", "utf-8")
        self.run(
            "bud",
            "--isolation=chroot",
            "--format=docker",
            f"--build-arg=BASE={BASE}",
            f"--volume={wheels}:/mnt:ro",
            f"--volume={pip_settings}:/etc/pip.conf:ro",
            # As Docker does, which takes the one beside the Dockerfile first.
            f"--ignorefile={checkout / of.ignored}",
            f"--file={checkout / of.file}",
            f"--tag={of.name}",
            str(checkout),
        )
        config: dict[str, Any] = json.loads(self.run("inspect", "--type=image", of.name))["Docker"]
        return dict(config["config"])

    def root_of_container(self, *, of: Image = HUB) -> str:
        """Make a container and give the folder where its files are."""
        return self.run("mount", self.run("from", of.name))


def run_once(
    root: str, config: dict[str, Any], arguments: list[str], *, reads: Path, writes: Path
) -> subprocess.CompletedProcess[str]:
    """Run an image's command to its end, as `docker run --rm --network none --read-only` does.

    Args:
        root: Files of a container.
        config: The image's configuration.
        arguments: Of the command.
        reads: A folder that is /mnt/in there.
        writes: A folder that is /mnt/out there.
    """
    folder = shlex.quote(config["WorkingDir"])
    inside = ["/usr/bin/env", "-i", "-C", folder, *config["Env"], *config["Entrypoint"]]
    own = ["unshare", "--mount", "--ipc", "--uts", "--net", "--pid", "--fork"]
    owner = {"ROOT": root, "IN": str(reads), "OUT": str(writes), "OWNER": config["User"]}
    return subprocess.run(
        [*own, "sh", "-c", _ENTER_ONCE, "sh", *inside, *arguments],
        env={**os.environ, **owner},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )


class Container:
    """One run of the image.

    Args:
        root: Its files.
        volume: A folder of the host for the state.
        config: The image's configuration.
    """

    def __init__(self, root: str, volume: Path, config: dict[str, Any]) -> None:
        self.port = free_port()
        self._config = config
        self._variables = [*config["Env"], f"EDGEHUB_MQTT__PORT={self.port}"]
        inside = self._inside([*config["Entrypoint"], *config["Cmd"]])
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--ipc", "--uts", "sh", "-c", _ENTER, "sh", *inside],
            env={**os.environ, "ROOT": root, "VOLUME": str(volume), "OWNER": config["User"]},
            stderr=subprocess.PIPE,
        )

    def wait_started(self) -> None:
        """Wait for the log line that says that the heads listen."""
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            seen.append(line.decode())
            if b"hub.started" in line:
                return
        raise AssertionError("".join(seen))

    def health(self) -> int:
        """Run the health check as the engine does and give its exit code."""
        kind, *words = self._config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.run(*words).returncode

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command beside the hub, as `docker exec` does."""
        user, _, group = self._config["User"].partition(":")
        enter = [f"--target={self._process.pid}", "--mount", "--root", "--wd"]
        owner = [f"--setuid={user}", f"--setgid={group}"]
        command = ["nsenter", *enter, *owner, *self._inside(list(words))]
        return subprocess.run(command, capture_output=True, check=False, timeout=STOP_TIMEOUT_S)

    def publish(self, count: int) -> None:
        """Publish as a device and have it acknowledged."""
        device = Device("pump-7", self.port)
        for number in range(count):
            device.publish("x", number)
        assert device.wait_in_flight_below(1, 10)
        device.close()

    def stop(self) -> int:
        """Send the image's stop signal and give the exit code."""
        self._process.send_signal(signal.Signals[self._config["StopSignal"]])
        assert self._process.stderr is not None
        with self._process.stderr as rest:
            rest.read()
        return self._process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Leave no process behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _inside(self, words: list[str]) -> list[str]:
        folder = shlex.quote(self._config["WorkingDir"])
        return ["/usr/bin/env", "-i", "-C", folder, *self._variables, *words]
