"""Worlds of `route_sync_scenarios.json`: tables as the daemon has them, over a real Redis.

What stands here is the harness: the channel between hubs that loses, doubles and holds back, the
storage that refuses, the plugins that count. Nothing here decides what a hub does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.routes.content import InvalidRouteError, read_body
from edgehub.routes.tenant import RouteKey, Tenant
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.redis import RedisStorage
from edgehub.sync.storage import DEFAULTS, Position
from tests.support.route_tables import CountingHost, make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.redis import RedisServer

CHECK_S = 0.5
SETTLE_S = 4.0
REACH_S = 0.25
HOME = "t1"


class KilledError(Exception):
    """The instance was killed in the middle of a write."""


class Interference:
    """What a scenario does to one hub from outside; it outlives the hub's process.

    Attributes:
        faults: Kinds of storage calls that fail.
        broken: Hashes whose routes cannot be built.
        gate: Holds up reads of the whole table, None = nothing does.
        lose: Notices that are lost.
        doubles: Copies of the next notice.
        manual: Notices wait until they are delivered by hand.
        down: The channel is down for all hubs.
        cut: It is for this one.
        stalled: The hub handles no notice.
    """

    def __init__(self) -> None:
        self.faults: set[str] = set()
        self.broken: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.lose = 0
        self.doubles = 0
        self.manual = False
        self.down = False
        self.cut = False
        self.stalled = False


class Channel:
    """The way of notices to one hub: entries of the real log, delivered as a scenario wants."""

    def __init__(self, storage: RedisStorage, around: Interference) -> None:
        self._storage = storage
        self._around = around
        self.cursor = Position()
        self.inbox: list[Any] = []
        self.held: list[Any] = []
        self.arrived = asyncio.Event()
        self.delivered = 0
        self._read = asyncio.Event()

    @property
    def broken(self) -> bool:
        """Whether notices get nowhere."""
        return self._around.down or self._around.cut

    async def run(self) -> None:
        """Read the log and deliver, until cancelled."""
        while True:
            try:
                entries = await self._storage.follow(self.cursor, 0.2)
            except StorageUnavailableError:
                await asyncio.sleep(0.05)
                continue
            for entry in entries:
                self.cursor = Position(epoch=entry.epoch, revision=entry.revision)
                self.take(entry)
            self._read.set()

    async def reach(self, position: Position) -> None:
        """Wait until entries up to a position have been taken; a log that lacks them has a gap."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REACH_S):
                while not self.has_reached(position):
                    self._read.clear()
                    await self._read.wait()

    def has_reached(self, position: Position) -> bool:
        """Return whether entries up to a position have been taken."""
        return (self.cursor.epoch, self.cursor.revision) >= (position.epoch, position.revision)

    def take(self, entry) -> None:
        """Let one notice come, as the scenario wants."""
        if self.broken:
            return
        if self._around.lose:
            self._around.lose -= 1
            return
        copies = [entry] * (1 + self._around.doubles)
        self._around.doubles = 0
        if self._around.manual:
            self.held += copies
        else:
            self.hand_over(copies)

    def hand_over(self, entries: Sequence[Any]) -> None:
        """Put notices where the hub reads them."""
        self.inbox += entries
        self.arrived.set()

    async def follow(self, wait_s: float) -> list[Any]:
        """Return what has arrived; what the hub calls in the place of the storage's log."""
        if self.broken:
            raise StorageUnavailableError("the channel is down")
        if not self.inbox or self._around.stalled:
            self.arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.arrived.wait()
        if self.broken:
            raise StorageUnavailableError("the channel is down")
        if self._around.stalled:
            return []
        taken, self.inbox = self.inbox, []
        self.delivered += len(taken)
        return taken

    @property
    def idle(self) -> bool:
        """Whether the hub has taken all that it may."""
        return not self.inbox or self._around.stalled or self.broken


class HarnessStorage(RedisStorage):
    """A storage whose log goes through a channel, and that can be made to fail."""

    def __init__(
        self, link: RedisLink, *, prefix: str, instance: str, around: Interference
    ) -> None:
        super().__init__(link, prefix=prefix, instance=instance)
        self.channel = Channel(RedisStorage(link, prefix=prefix, instance=instance), around)
        self.crash = ""
        self._around = around

    async def follow(self, after, wait_s):
        """Return what the channel lets through."""
        del after
        return await self.channel.follow(wait_s)

    async def position(self):
        """Return the position, once the channel has what led to it; may be made to fail."""
        self._may("read")
        position = await super().position()
        await self.channel.reach(position)
        return position

    async def read(self, keys):
        """See `TableStorage`; may be made to fail."""
        self._may("read")
        return await super().read(keys)

    async def digest(self):
        """See `TableStorage`; may be made to fail, or held up."""
        self._may("read")
        digest = await super().digest()
        await self._held_up()
        return digest

    async def scan(self):
        """See `TableStorage`; may be made to fail, or held up."""
        self._may("read")
        pages = [page async for page in super().scan()]
        await self._held_up()
        for page in pages:
            yield page

    async def write(self, changes, *, session, expected=None):
        """See `TableStorage`; may be made to fail, or to kill the hub."""
        self._may("write")
        crash, self.crash = self.crash, ""
        if crash == "before_store":
            raise KilledError
        result = await super().write(changes, session=session, expected=expected)
        if crash:
            # Row and notice are one step, so "stored but not published" cannot be.
            raise KilledError
        return result

    def _may(self, kind: str) -> None:
        if {kind, "all"} & self._around.faults:
            raise StorageUnavailableError(f"{kind} is made to fail")

    async def _held_up(self) -> None:
        if self._around.gate is not None:
            await self._around.gate.wait()


class Instance:
    """One hub: its table, storage, channel and host.

    Args:
        world: Where it is.
        name: The hub.
        before: The same hub before it was started again.
    """

    def __init__(self, world: World, name: str, before: Instance | None = None) -> None:
        self.world = world
        self.name = name
        self.around = Interference() if before is None else before.around
        self.host = CountingHost()
        self.host.broken = self.around.broken
        if before is not None:
            self.host.starts, self.host.stops = before.host.starts, before.host.stops
        self.link = RedisLink(RedisOptions(url=world.url))
        self.storage = HarnessStorage(
            self.link, prefix=world.prefix, instance=name, around=self.around
        )
        self.table = make_table(
            self.storage,
            name,
            host=self.host,
            check_s=CHECK_S,
            compare_s=86_400,
            tenants=dict.fromkeys(world.tenants.values()),
        )
        self.tasks: list[asyncio.Task[Any]] = []
        self.up = False
        self.serves = False
        """Whether it has loaded its table, before which nobody can ask it anything."""

    async def start(self) -> None:
        """Open and run."""
        self.storage.channel.cursor = await self.world.control.position()
        self.up = True
        self._spawn(self.storage.channel.run())
        await self.table.open()
        self.serves = True
        self._spawn(self.table.run())

    async def stop(self) -> None:
        """End in order."""
        self.up = self.serves = False
        await self._cancel()
        await self.table.close()
        await self.link.close()

    async def kill(self) -> None:
        """End at once."""
        self.up = self.serves = False
        await self._cancel()
        await self.link.close()

    def _spawn(self, work) -> None:
        self.tasks.append(self.world.group.create_task(work))

    async def _cancel(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    @property
    def idle(self) -> bool:
        """Whether everything that arrived has been applied."""
        figures = self.table.statistics()
        heard = figures.notices_total == self.storage.channel.delivered
        return (
            self.storage.channel.idle
            and heard
            and figures.applied_revision == figures.revision
            and not self.table.busy
        )


class World:
    """One scenario's server, instances and words.

    Args:
        document: The whole case file.
        scenario: What is run.
        server: A running Redis.
    """

    def __init__(self, document: dict[str, Any], scenario: dict[str, Any], server: RedisServer):
        self.document = document
        self.scenario = scenario
        self.server = server
        self.url = server.url
        self.prefix = scenario["id"]
        self.tenants = {
            name: Tenant(value["org"], value["app"])
            for name, value in document["tenants"].items()
            if isinstance(value, dict)
        }
        self.group: asyncio.TaskGroup
        self.control: RedisStorage
        self.instances: dict[str, Instance] = {}
        self.acks: list[tuple[str, str]] = []
        self.background: list[asyncio.Task[Any]] = []
        """Steps that a gate holds up, or that a scenario does not wait for."""

    # Words of the file.

    def tenant(self, name: str) -> Tenant:
        """Return a tenant by the file's word."""
        return self.tenants.get(name, Tenant("nobody", "nobody"))

    def key(self, label: str, tenant: str = HOME) -> RouteKey:
        """Return the key of an id of the file; one that names no tenant is of the one given."""
        named, _, name = label.rpartition("/")
        tenant = named or tenant
        if name.startswith("@"):
            config, _, of = name[1:].partition("@")
            name = self.hash(f"{config}@{of or tenant}")
        return RouteKey(self.tenant(tenant), name)

    def hash(self, label: str) -> str:
        """Return the hash of a label."""
        config, _, tenant = label.partition("@")
        return read_body(self.body(config), self.tenant(tenant or HOME)).content.hash

    def body(self, label: str) -> dict[str, Any]:
        """Say a neutral configuration in the hub's words."""
        config = dict(self.document["configs"][label])
        receiver, sender = config.pop("receiver", None), config.pop("sender", None)
        chain = config.pop("filterChain", [])
        text = "FROM " + ("" if receiver is None else self.source(receiver))
        if chain:
            text += " WHERE " + " AND ".join(
                f"{each['name']} = {_quoted(_text(each))}" for each in chain
            )
        text += "" if sender is None else f' INTO Endpoint("{self.endpoint(sender)}")'
        body = {"route": text, "enabled": not config.pop("inactive", False)}
        if "name" in config:
            body["name"] = config.pop("name")
        server_kept = {m: config.pop(m) for m in ("created", "modified", "status") if m in config}
        return {**body, **server_kept, "description": _text(config)}

    def source(self, receiver: dict[str, Any]) -> str:
        """Say a receiver as a source."""
        return f"/mqtt/{receiver['plugin']}/{receiver['name']}/{_text(receiver).encode().hex()}"

    def endpoint(self, sender: dict[str, Any]) -> str:
        """Say a sender as the name of an endpoint."""
        kind = sender["plugin"].replace("_", "-")
        return f"{kind}-{sender['name']}-{read_digest(sender)}"

    def needs(self, label: str) -> dict[str, str]:
        """Return what a host calls the plugin instances of a configuration."""
        config = self.document["configs"][label]
        receiver, sender = self.document["plugin_instances"][label]
        tenant = self.tenant(HOME).label
        return {
            receiver: f"source:{tenant}{self.source(config['receiver'])}",
            sender: f"endpoint:{self.endpoint(config['sender'])}",
        }

    @cached_property
    def labels(self) -> dict[str, str]:
        """Return a label for each hash."""
        named: dict[str, str] = {}
        for tenant in self.tenants:
            for label in self.document["configs"]:
                try:
                    content = read_body(self.body(label), self.tenant(tenant)).content
                except InvalidRouteError:
                    continue
                named.setdefault(content.hash, label if tenant == HOME else f"{label}@{tenant}")
        return named

    # What is.

    def state(self, instance: Instance) -> dict[str, Any]:
        """Describe a hub in the file's words."""
        labels = self.labels
        ids = instance.table.live.ids() if instance.up else {}
        refs = Counter(ids.values())
        running = instance.host.running if instance.up else set()
        return {
            "ids": {self.id_label(key): labels.get(each, each) for key, each in ids.items()},
            "refs": {labels.get(each, each): count for each, count in refs.items()},
            "running": sorted(labels.get(each, each) for each in running),
        }

    def id_label(self, key: RouteKey) -> str:
        """Say a key in the file's words."""
        labels = self.labels
        tenant = next(name for name, each in self.tenants.items() if each == key.tenant)
        name = f"@{labels[key.id].partition('@')[0]}" if key.id in labels else key.id
        return name if tenant == HOME else f"{tenant}/{name}"

    async def stored(self) -> dict[str, str]:
        """Return what the storage holds: id and label."""
        labels = self.labels
        rows = {row.key: row async for page in self.control.scan() for row in page}
        found = {}
        rows.pop(DEFAULTS, None)
        for key, row in rows.items():
            # Which tenant it is of stands in the id.
            label = labels.get(row.hash, "?").partition("@")[0] if hasattr(row, "hash") else "RAW"
            off = hasattr(row, "enabled") and not row.enabled
            found[self.id_label(key)] = f"{label}_off" if off else label
        return found

    def normal(self, label: str) -> str:
        """Return the one label of a class of equal contents."""
        for first, others in self.document["same_hash"].items():
            if label in others:
                return first
        return label


def read_digest(value: Any) -> str:
    """Return eight characters for a value."""
    import hashlib  # noqa: PLC0415 - only here

    return hashlib.sha256(_text(value).encode()).hexdigest()[:8]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "`") + "'"
