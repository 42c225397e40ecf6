"""The hub beside programs that people use in its place, under the same load from the same tool.

Devices publish with QoS 1; the far end is a sink that confirms at once where the program sends by
itself, and a subscriber with a session where it is a broker that is read from. A program that is
not installed is left out, and the table says how to get it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench.tools import EDGEHUB, MANIFEST, Receiver, a_mosquitto, publish, write_manifest
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FILTER: Final = "devices/#"
KILLED_MESSAGES: Final = 5_000
SUBSCRIBER: Final = "counter"
PACED_RATE: Final = 200
LOAD_S: Final = 3.0
QUIET_S: Final = 15
START_TIMEOUT_S: Final = 120
POLL_S: Final = 0.02
FSYNC_DELAY_US: Final = 5_000
SLOW_DISK: Final = (
    "strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null",
    "-e", f"inject=fsync,fdatasync:delay_enter={FSYNC_DELAY_US}", "-e", "trace=fsync,fdatasync",
)  # fmt: skip
ENVIRONMENT: Final = Path(sys.prefix) / ".peers" / "bin"
"""Programs from PyPI that cannot share an environment with ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What is started for a peer.

    Attributes:
        port: Where devices connect.
        commands: Processes, the one that devices connect to last.
        env: Variables beside those of the bench.
        ready: Text of their output after which they take messages.
    """

    port: int
    commands: Sequence[Sequence[str]]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program that takes messages from devices and brings them to a far end.

    Attributes:
        title: Name for people.
        promise: What its acknowledgement means, as its documents say.
        setup: Writes its settings into a folder, towards the port of a sink.
        level: Of MQTT, 4 = 3.1.1, that it speaks to a sink.
        is_read: Whether the far end subscribes at it, in place of a sink.
        is_stored: Returns whether the subscriber's session is on disk, with the folder; None = it
            is once it is confirmed.
        msgs_s: Roughly what it does, on flash and on a slow disk, which sizes the load.
        needs: Commands, and how to install them.
    """

    title: str
    promise: str
    setup: Callable[[Path, int], Programs]
    level: int = 4
    is_read: bool = False
    is_stored: Callable[[Path], bool] | None = None
    msgs_s: tuple[int, int] = (30_000, 10_000)
    needs: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return how to install what is not there, None = all is."""
        absent = [how for command, how in self.needs.items() if which(command) is None]
        return ", ".join(absent) or None


def which(command: str) -> str | None:
    """Return the path of a program, of those from PyPI too."""
    return shutil.which(command, path=f"{ENVIRONMENT}:{os.environ['PATH']}:/usr/sbin")


class Running:
    """Programs that are started, measured and killed together."""

    def __init__(self, folder: Path, programs: Programs, prefix: Sequence[str]) -> None:
        self.port = programs.port
        self._folder = folder
        self._log = folder / "log"
        self._programs = programs
        self._prefix = prefix
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start and wait until devices can connect."""
        with self._log.open("wb") as output:
            for command in self._programs.commands:
                process = subprocess.Popen(
                    [*self._prefix, *command],
                    cwd=self._folder,
                    env={**os.environ, **self._programs.env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                self._processes.append(process)
        self.wait(lambda: self._is_open() and self._programs.ready in self._log.read_bytes())

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until a condition holds; raise RuntimeError if it does not in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                end = self._log.read_text("utf-8", errors="replace")[-2000:]
                msg = f"{self._programs.commands[-1][0]} does not get ready: {end}"
                raise RuntimeError(msg)
            time.sleep(POLL_S)

    def cpu_s(self) -> float:
        """Return the processor time that all processes have used."""
        sessions = {process.pid for process in self._processes}
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text("ascii", errors="replace").rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) in sessions:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End all at once, as a crash would."""
        for process in self._processes:
            with suppress(ProcessLookupError):  # a session that has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def _is_open(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


def hub(folder: Path, far_port: int, *, routes: Mapping[str, Any] | None = None) -> Programs:
    """Set up a hub, with routes or with everything upstream."""
    port = free_port()
    manifest = ""
    if routes is not None:
        manifest = f'manifest = "{MANIFEST}"\n'
        write_manifest(folder, routes)
    (folder / "edgehub.toml").write_text(
        f'{manifest}data_dir = "data"\n[mqtt]\nport = {port}\n'
        f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {far_port}\n'
    )
    return Programs(port=port, commands=[[str(EDGEHUB), "run"]])


def bridge(folder: Path, far_port: int, *, saves: bool = False) -> Programs:
    """Set up a bridge with a session on disk."""
    further = ["autosave_on_changes true", "autosave_interval 1"] if saves else []
    broker = a_mosquitto(folder, *further, bridge_to=far_port)
    return Programs(port=broker.port, commands=[broker.command])


def rabbitmq(folder: Path, _far_port: int, *, amqp_port: int = 0) -> Programs:
    """Make quorum queues the default, which the sessions of MQTT subscribers then are."""
    port, distribution, mapper = (free_port() for _ in range(3))
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    definitions = {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "vhosts": [{"name": "/", "default_queue_type": "quorum", "metadata": {
            "description": "", "tags": [], "default_queue_type": "quorum"}}],
        "permissions": [{"user": "guest", "vhost": "/", **everything}],
    }  # fmt: skip
    (folder / "definitions.json").write_text(json.dumps(definitions))
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp_port or free_port()}\n"
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\n"
        "mqtt.allow_anonymous = true\n"
        f"load_definitions = {folder}/definitions.json\n"
        "log.console = true\n"
        "log.file = false\n"
    )
    (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
    program = next(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    env = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    return Programs(
        port=port, commands=[["epmd"], [str(program)]], env=env, ready=b"Server startup complete"
    )


def _knows_queue(folder: Path) -> bool:
    """Return whether RabbitMQ has written to disk that the subscriber's quorum queue exists.

    RabbitMQ 3.10 writes its directory of quorum queues about a second after one is declared. After
    a kill within that second it starts the queue as a new one, without what it has confirmed.
    """
    queue = f"mqtt-subscription-{SUBSCRIBER}qos1".encode()
    return any(queue in names.read_bytes() for names in folder.glob("mnesia/*/quorum/*/names.dets"))


def _nats(folder: Path, _far_port: int, *, sync: str) -> Programs:
    port, mqtt = free_port(), free_port()
    (folder / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\nserver_name: bench\n'
        f'jetstream {{ store_dir: "{folder}/jetstream", sync_interval: {sync} }}\n'
        f'mqtt {{ listen: "127.0.0.1:{mqtt}" }}\n'
    )
    program = str(which("nats-server"))
    return Programs(port=mqtt, commands=[[program, "-c", f"{folder}/nats.conf"]])


def _thingsboard(folder: Path, far_port: int) -> Programs:
    """Put a Mosquitto in front: its MQTT connector is a client of a broker."""
    front = a_mosquitto(folder, "log_dest stderr", "log_type subscribe")
    server: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": far_port,
        "remoteShell": False,
        "remoteConfiguration": False,
        "statistics": {"enable": False},
        "security": {"type": "accessToken", "accessToken": "bench"},
        "qos": 1,
    }
    storage = {"type": "sqlite", "data_file_path": f"{folder}/data/"}
    connectors = [{"type": "mqtt", "name": "devices", "configuration": "mqtt.json"}]
    # Values of one device and millisecond are merged where their keys are equal: none are.
    whole = {"type": "string", "key": "[16:32]", "value": "[:]"}
    mapping = {
        "topicFilter": FILTER,
        "subscriptionQos": 1,
        "converter": {
            "type": "bytes",
            "deviceInfo": {
                "deviceNameExpressionSource": "message",
                "deviceNameExpression": "dev[31:32]",
                "deviceProfileExpressionSource": "constant",
                "deviceProfileExpression": "default",
            },
            "attributes": [],
            "timeseries": [whole],
        },
    }
    broker = {
        "host": "127.0.0.1",
        "port": front.port,
        "clientId": "gateway",
        "version": 4,
        "security": {"type": "anonymous"},
    }
    folder.joinpath("data").mkdir(exist_ok=True)
    for name, document in (
        ("tb_gateway.json", {"thingsboard": server, "storage": storage, "connectors": connectors}),
        ("mqtt.json", {"broker": broker, "mapping": [mapping]}),
        ("logs.json", {"version": 1}),
    ):
        (folder / name).write_text(json.dumps(document))
    return Programs(
        port=front.port,
        commands=[front.command, [str(which("thingsboard-gateway"))]],
        env={"TB_GW_CONFIG_DIR": str(folder)},
        ready=f"gateway 1 {FILTER}".encode(),
    )


FROM_PYPI: Final = "make peers"
PEERS: Final[Mapping[str, Peer]] = {
    "hub": Peer(title="**edgehub**", promise="on disk, synced, or confirmed", setup=hub),
    "bridge": Peer(
        title="Mosquitto bridge",
        promise="in memory; saved every 30 min",
        setup=bridge,
    ),
    "saving_bridge": Peer(
        title="Mosquitto bridge, `autosave_on_changes`",
        promise="in memory; saved soon after",
        setup=partial(bridge, saves=True),
        msgs_s=(1_500, 1_500),
    ),
    "rabbitmq": Peer(
        title="RabbitMQ, MQTT to a quorum queue",
        promise="in the Raft log, synced",
        setup=rabbitmq,
        is_read=True,
        is_stored=_knows_queue,
        msgs_s=(10_000, 1_000),
        needs={"rabbitmqctl": "apt-get install rabbitmq-server"},
    ),
    "nats": Peer(
        title="NATS JetStream, MQTT",
        promise="in a file, synced every 2 min",
        setup=partial(_nats, sync='"2m"'),
        is_read=True,
        msgs_s=(30_000, 3_000),
        needs={"nats-server": FROM_PYPI},
    ),
    "synced_nats": Peer(
        title="NATS JetStream, MQTT, `sync_interval: always`",
        promise="in a file, synced",
        setup=partial(_nats, sync="always"),
        is_read=True,
        msgs_s=(2_000, 100),
        needs={"nats-server": FROM_PYPI},
    ),
    "thingsboard": Peer(
        title="ThingsBoard Gateway, SQLite storage",
        promise="in the memory of the broker in front",
        setup=_thingsboard,
        level=5,
        msgs_s=(2_000, 2_000),
        needs={"thingsboard-gateway": FROM_PYPI},
    ),
}


@contextmanager
def _running(
    peer: Peer, folder: Path, messages: int, *, prefix: Sequence[str] = ()
) -> Iterator[tuple[Running, Receiver]]:
    """Start a peer on a fresh folder, with its far end."""
    folder.mkdir()
    sink = None if peer.is_read else Receiver("sink", 0, messages, level=peer.level)
    running = Running(folder, peer.setup(folder, sink.port if sink else 0), prefix)
    far = sink
    try:
        running.start()
        if sink is not None:
            sink.wait_client()
        far = sink or _subscriber(running.port, messages)
        yield running, far
    finally:
        running.kill()
        if far is not None:
            far.close()


def _subscriber(port: int, messages: int, **options: Any) -> Receiver:
    session = {"client": SUBSCRIBER, "topic": FILTER, "keep-session": 1}
    return Receiver("subscribe", port, messages, **session, **options)


def speed(
    name: str, folder: Path, *, slow: bool = False, seconds: float = LOAD_S
) -> dict[str, float]:
    """Measure throughput and latency from device to far end, on the disk as it is or made slow."""
    peer = PEERS[name]
    prefix = SLOW_DISK if slow else ()
    messages = round(peer.msgs_s[slow] * seconds)
    with _running(peer, folder / "full", messages, prefix=prefix) as (running, far):
        cpu_s = running.cpu_s()
        publish(running.port, messages, connections=10, window=20)
        figures = {"msgs_s": far.result()["msgs_s"]}
        figures["cpu_us"] = (running.cpu_s() - cpu_s) * 1e6 / messages
    messages = round(PACED_RATE * seconds)
    with _running(peer, folder / "paced", messages, prefix=prefix) as (running, far):
        publish(running.port, messages, connections=10, window=20, rate=PACED_RATE)
        arrived = far.result()
        figures |= {f"{p}_ms": arrived[f"{p}_ms"] for p in ("p50", "p99")}
    disk = "slow_" if slow else ""
    return {f"peers_{name}_{disk}{figure}": value for figure, value in figures.items()}


def survivors(name: str, folder: Path, *, messages: int = KILLED_MESSAGES) -> dict[str, float]:
    """Count what arrives after a `kill -9` right behind the last acknowledgement."""
    peer = PEERS[name]
    place = folder / "killed"
    with _running(peer, place, messages) as (running, far):
        if peer.is_stored is not None:
            running.wait(partial(peer.is_stored, place))
        far.close()
        publish(running.port, messages, connections=10, window=20)
        running.kill()
        if not peer.is_read:
            again = Receiver("sink", far.port, messages, level=peer.level, quiet=QUIET_S)
        running.start()
        if peer.is_read:
            again = _subscriber(running.port, messages, quiet=QUIET_S)
        try:
            return {f"peers_{name}_survivors": again.result()["acked"]}
        finally:
            again.close()


def _case(name: str, measure: Callable[[str, Path], dict[str, float]], *tools: str) -> Any:
    def run(folder: Path) -> dict[str, float]:
        absent = [f"apt-get install {tool}" for tool in tools if which(tool) is None]
        missing = PEERS[name].missing() or ", ".join(absent)
        if missing:
            print(f"  left out: {PEERS[name].title} ({missing})", file=sys.stderr)
            return {}
        return measure(name, folder)

    return run


CASES: Final[Mapping[str, Callable[[Path], dict[str, float]]]] = {
    **{f"peers-speed-{name}": _case(name, speed) for name in PEERS},
    **{
        f"peers-slow-{name}": _case(name, partial(speed, slow=True), SLOW_DISK[0]) for name in PEERS
    },
    **{f"peers-kill-{name}": _case(name, survivors) for name in PEERS},
}


def table(medians: Mapping[str, float]) -> str:
    """Return the Markdown table of what was measured."""
    columns = (
        "program",
        "messages/s",
        "CPU µs a message",
        "p50, p99 ms",
        "slow disk: messages/s",
        "p50, p99 ms",
        "PUBACK means",
        "left after `kill -9`",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, peer in PEERS.items():
        of = partial(_cell, medians, name)
        cells = [
            peer.title,
            of("msgs_s"),
            of("cpu_us"),
            f"{of('p50_ms')}, {of('p99_ms')}",
            of("slow_msgs_s"),
            f"{of('slow_p50_ms')}, {of('slow_p99_ms')}",
            peer.promise,
            f"{of('survivors')} of {KILLED_MESSAGES}",
        ]
        missing = peer.missing()
        if missing is not None:
            cells[1:] = [f"left out: {missing}", *[""] * (len(columns) - 2)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(medians: Mapping[str, float], name: str, figure: str) -> str:
    value = medians.get(f"peers_{name}_{figure}")
    if value is None:
        return "-"
    if figure == "survivors":
        return f"{value:,.0f}"
    return f"{value:.1f}" if value < 100 else f"{float(f'{value:.3g}'):,.0f}"
