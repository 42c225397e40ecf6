"""The steps of `route_sync_scenarios.json`, carried out and compared; see `route_sync`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.routes.content import InvalidRouteError, read_body
from edgehub.sync.faults import (
    PreconditionError,
    RouteNotFoundError,
    StorageUnavailableError,
    UnknownTenantError,
)
from edgehub.sync.redis import RedisStorage, log_entry
from edgehub.sync.storage import Report
from tests.support.route_sync import HOME, SETTLE_S, Instance, KilledError, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Scenario:
    """Carries out the steps of one scenario and collects what is not as expected."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.differences: list[str] = []

    async def run(self) -> list[str]:
        """Run all steps; give what differs."""
        world = self.world
        control = RedisLink(RedisOptions(url=world.url))
        world.control = RedisStorage(control, prefix=world.prefix, instance="control")
        try:
            async with asyncio.TaskGroup() as world.group:
                try:
                    names = [f"i{n + 1}" for n in range(world.scenario["instances"])]
                    for name in names:
                        world.instances[name] = Instance(world, name)
                        await world.instances[name].start()
                    for number, step in enumerate(world.scenario["steps"], 1):
                        await self.step(number, step)
                    await self.end()
                finally:
                    for instance in world.instances.values():
                        if instance.up:
                            await instance.kill()
        finally:
            await world.control.close()
            await control.close()
        return self.differences

    async def step(self, number: int, step: dict[str, Any]) -> None:
        """Carry out one step and compare."""
        where = f"step {number} ({step['op']})"
        outcome = await getattr(self, f"_op_{step['op']}")(step)
        if "result" in step and outcome not in _accepted(step["result"]):
            self.differences.append(f"{where}: result {outcome}, want {step['result']}")
        if "repaired" in step and outcome != [step["repaired"]] * len(outcome):
            self.differences.append(f"{where}: repaired {outcome}, want {step['repaired']}")
        await self.settle(step.get("within_s", SETTLE_S), step, where)

    async def settle(self, within_s: float, step: dict[str, Any], where: str) -> None:
        """Wait until everything that is on its way has arrived, then compare."""
        wanted = step.get("after") or step.get("after_counts")
        lagging = step.get("lagging", ())
        world = self.world
        position = await world.control.position()

        def arrived(instance: Instance) -> bool:
            seen = instance.storage.channel.cursor
            return (seen.epoch, seen.revision) >= (position.epoch, position.revision)

        def quiet() -> bool:
            up = [each for each in world.instances.values() if each.up]
            return all(arrived(each) and each.idle for each in up)

        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            if quiet() or asyncio.get_running_loop().time() > deadline:
                found = [] if wanted is None else await self.compare(wanted, lagging)
                if not found or asyncio.get_running_loop().time() > deadline:
                    break
            await asyncio.sleep(0.005)
        self.differences += [f"{where}: {each}" for each in found]

    async def compare(self, wanted: dict[str, Any], lagging: Sequence[str] = ()) -> list[str]:
        """Return which hubs are not as wanted."""
        found = []
        world = self.world
        stored = await world.stored() if lagging else {}
        for name, instance in world.instances.items():
            want = wanted.get(name, wanted.get("all"))
            if want is None:
                continue
            if want.get("down"):
                if instance.up:
                    found.append(f"{name} is up")
                continue
            state = world.state(instance)
            found += self.broken_invariants(name, instance)
            if _same(state, want):
                continue
            if name in lagging and state["ids"] == {
                key: label for key, label in stored.items() if not label.endswith("_off")
            }:
                continue
            found.append(f"{name} is {state}, want {want}")
        return found

    def broken_invariants(self, name: str, instance: Instance) -> list[str]:
        """Return what must never be, of one hub."""
        live = instance.table.live
        ids, running = live.ids(), set(instance.host.running)
        found = []
        if instance.up and running != set(ids.values()):
            found.append(f"{name}: running is not what ids refer to")
        needed = set()
        for each in running if instance.up else ():
            content = live.content(each)
            needed.add(f"source:{content.tenant.label}{content.spec.route.source}")
            needed.add(f"endpoint:{content.spec.route.sink.endpoint_id}")
        if instance.host.open != needed and instance.up:
            found.append(f"{name}: open are {instance.host.open}, needed {needed}")
        return found

    async def end(self) -> None:
        """Compare with what the scenario expects at its end."""
        expect, world = self.world.scenario["expect"], self.world
        if "one_of" in expect:
            worlds = [await self.judge(each) for each in expect["one_of"]]
            if all(worlds):
                self.differences += worlds[0]
            return
        self.differences += await self.judge(expect)
        for kind in ("starts", "stops"):
            for name, counts in expect.get(kind, {}).items():
                labels = world.labels
                counted: Counter[str] = getattr(world.instances[name].host, kind)
                got = {labels[each]: count for each, count in counted.items()}
                self.differences += [
                    f"{kind} of {label} on {name}: {got.get(label, 0)}, want {count}"
                    for label, count in counts.items()
                    if got.get(label, 0) != count
                ]
                surplus = got.keys() - counts.keys()
                if surplus and not self.self_repaired(name):
                    self.differences.append(f"{kind} on {name}: {got}, want {counts}")
        self.judge_plugins(expect)

    def self_repaired(self, name: str) -> bool:
        """Whether a scenario lets a hub see contents that a notice had not told it of."""
        return any(name in step.get("lagging", ()) for step in self.world.scenario["steps"])

    async def judge(self, expect: dict[str, Any]) -> list[str]:
        """Return what is not as in one world of the end."""
        wanted = {k: v for k, v in expect.items() if k in {"all", *self.world.instances}}
        if "all_counts" in expect:
            wanted = {"all": expect["all_counts"]}
        found = [f"end: {each}" for each in await self.compare(wanted)]
        stored = {key: self.world.normal(v) for key, v in (await self.world.stored()).items()}
        if "store" in expect:
            want = {key: self.world.normal(label) for key, label in expect["store"].items()}
            if stored != want:
                found.append(f"end: stored {stored}, want {want}")
        if "store_counts" in expect:
            got = {"rows": len(stored), "by_config": dict(Counter(stored.values()))}
            if got != expect["store_counts"]:
                found.append(f"end: stored {got}, want {expect['store_counts']}")
        return found

    def judge_plugins(self, expect: dict[str, Any]) -> None:
        """Compare what is open below live routes."""
        named: dict[str, str] = {}
        for label in self.world.document["plugin_instances"]:
            named |= {host: plugin for plugin, host in self.world.needs(label).items()}
        for name, want in expect.get("plugins", {}).items():
            live, counts = self.world.instances[name].table.live, Counter()
            for each in set(live.ids().values()):
                content = live.content(each)
                source = f"source:{content.tenant.label}{content.spec.route.source}"
                endpoint = f"endpoint:{content.spec.route.sink.endpoint_id}"
                counts.update([named.get(source, source), named.get(endpoint, endpoint)])
            if dict(counts) != want:
                self.differences.append(f"plugins on {name}: {dict(counts)}, want {want}")
        for name, want in expect.get("closed_plugins", {}).items():
            closed = self.world.instances[name].host.closed
            got = {named.get(each, each): count for each, count in closed.items()}
            for plugin, count in want.items():
                if got.get(plugin, 0) != count:
                    self.differences.append(f"{plugin} closed {got.get(plugin, 0)}, want {count}")

    # Steps.

    def on(self, step: dict[str, Any]) -> list[Instance]:
        """Return the hubs of a step."""
        names = step.get("on", "all")
        if names == "all":
            return [each for each in self.world.instances.values() if each.up]
        names = [names] if isinstance(names, str) else names
        return [self.world.instances[name] for name in names]

    async def _op_add(self, step: dict[str, Any]) -> str:
        (instance,) = self.on(step)
        key = self.world.key(step["id"]) if "id" in step else None
        tenant = self.world.tenant(step.get("tenant", HOME)) if key is None else key.tenant
        body = self.world.body(step["config"])
        if "body_id" in step:
            body["id"] = step["body_id"]
        how: dict[str, Any] = {"tenant": tenant}
        if "acks" in step:
            how |= {"wait": True, "timeout_s": self.world.document["parameters"]["ack_timeout_s"]}
        instance.storage.crash = step.get("crash", "")

        async def call() -> Any:
            if key is None:
                return await instance.table.add(body, **how)
            return await instance.table.put(key.id, body, **how)

        return await self.outcome(instance, call, step)

    async def _op_remove(self, step: dict[str, Any]) -> str:
        (instance,) = self.on(step)
        key = self.world.key(step["id"])
        instance.storage.crash = step.get("crash", "")
        return await self.outcome(
            instance, lambda: instance.table.delete(key.id, tenant=key.tenant), step
        )

    async def outcome(self, instance: Instance, call: Callable[[], Any], step) -> str:
        """Call a hub and say in the file's words how it answered."""
        try:
            async with asyncio.timeout(step.get("max_call_s", 5)):
                written = await call()
        except KilledError:
            await instance.kill()
            return "crashed"
        except (RouteNotFoundError, UnknownTenantError):
            return "not_found"
        except StorageUnavailableError:
            return "server_error"
        except (InvalidRouteError, PreconditionError):
            return "client_error"
        if "acks" in step:
            self.judge_acks(written.applied, step, instance)
        return "ok"

    def judge_acks(self, applied, step: dict[str, Any], writer: Instance) -> None:
        """Compare who has applied a change."""
        by = {each for each in applied.by if each != writer.name}
        want = set(step["acks"]["from"])
        failed = {name for name, _ in applied.failed}
        repaired = by > want and applied.result == "complete" and step.get("lagging")
        word = "complete" if applied.result == "complete" else "timeout"
        if not repaired and (word, by) != (step["acks"]["result"], want):
            self.differences.append(f"acks: {applied}, want {step['acks']}")
        if failed & by:
            self.differences.append(f"acks: {failed & by} both failed and applied")

    async def _op_sync(self, step: dict[str, Any]) -> list[int]:
        return [(await each.table.drift()).repaired for each in self.on(step)]

    async def _op_settle(self, step: dict[str, Any]) -> None:
        del step

    async def _op_bus(self, step: dict[str, Any]) -> None:
        for instance in self.world.instances.values():
            channel = instance.storage.channel
            channel.manual = step["mode"] == "manual"
            channel.down = step["mode"] == "down"
            channel.arrived.set()

    async def _op_deliver(self, step: dict[str, Any]) -> None:
        for instance in self.world.instances.values():
            channel = instance.storage.channel
            held, channel.held = channel.held, []
            if step["order"] == "lifo":
                held.reverse()
            channel.hand_over(held[:1] if step["order"] == "first_only" else held)

    async def _op_lose(self, step: dict[str, Any]) -> None:
        for name in step["to"]:
            self.world.instances[name].storage.channel.lose = step["next"]

    async def _op_duplicate(self, step: dict[str, Any]) -> None:
        for name in step["to"]:
            self.world.instances[name].storage.channel.doubles = step["times"]

    async def _op_partition(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            instance.storage.channel.cut = step["state"] == "on"
            instance.storage.channel.arrived.set()

    async def _op_stall(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            instance.storage.channel.stalled = step["state"] == "on"
            instance.storage.channel.arrived.set()

    async def _op_store_put(self, step: dict[str, Any]) -> None:
        key = self.world.key(step["id"])
        content = read_body(self.world.body(step["config"]), key.tenant).content
        base = f"{{{self.world.prefix}:routes}}"
        raw = f"999999 {content.hash} 1 api 1 1"
        self.world.server.command("HSET", f"{base}:contents", content.hash, content.text)
        self.world.server.command("HSET", f"{base}:rows", str(key), raw)

    async def _op_store_put_raw(self, step: dict[str, Any]) -> None:
        rows = f"{{{self.world.prefix}:routes}}:rows"
        raw = step.get("raw", step.get("text", "rubbish"))
        self.world.server.command("HSET", rows, str(self.world.key(step["id"])), raw)

    async def _op_store_delete(self, step: dict[str, Any]) -> None:
        rows = f"{{{self.world.prefix}:routes}}:rows"
        self.world.server.command("HDEL", rows, str(self.world.key(step["id"])))

    async def _op_store_clear(self, step: dict[str, Any]) -> None:
        del step
        self.world.server.command("DEL", f"{{{self.world.prefix}:routes}}:rows")

    async def _op_store_fault(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            if step["state"] == "on":
                instance.storage.faults.add(step["what"])
            else:
                instance.storage.faults.discard(step["what"])

    async def _op_plugin_fault(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            each = self.world.hash(step["config"])
            if step["state"] == "on":
                instance.host.broken.add(each)
            else:
                instance.host.broken.discard(each)

    async def _op_drift(self, step: dict[str, Any]) -> None:
        (instance,) = self.on(step)
        key = self.world.key(step["id"])
        content = None
        if step["kind"] != "missing":
            content = read_body(self.world.body(step["config"]), key.tenant).content
        await instance.table.live.change({key: content})

    async def _op_gate_full_read(self, step: dict[str, Any]) -> None:
        (name,) = [step["on"]]
        if step["state"] == "hold":
            self.world.gates[name] = asyncio.Event()
            self.world.instances[name].storage.gate = self.world.gates[name]
            return
        self.world.gates.pop(name).set()
        for task in self.world.starting:
            await task
        self.world.starting.clear()

    async def _op_kill(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            await instance.kill()

    async def _op_stop(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            await instance.stop()

    async def _op_start(self, step: dict[str, Any]) -> None:
        name = step["on"]
        instance = Instance(self.world, name)
        instance.host.starts = self.world.instances[name].host.starts
        instance.host.stops = self.world.instances[name].host.stops
        self.world.instances[name] = instance
        gate = self.world.gates.get(name)
        if gate is None:
            await instance.start()
            if "ready" in step and instance.table.ready[0] != step["ready"]:
                self.differences.append(f"start: ready is {instance.table.ready}")
            return
        instance.storage.gate = gate
        self.world.starting.append(self.world.group.create_task(instance.start()))
        await asyncio.sleep(0.1)

    async def _op_inject_event(self, step: dict[str, Any]) -> None:
        event = step["event"]
        fields = [
            *(b"key", f"{self.world.tenant(HOME)}/{event['id']}".encode()),
            *(b"instance", event.get("instance", "").encode()),
            *(b"session", event.get("session", "").encode()),
            *(b"kind", event["cmd"].encode(), b"item", event.get("item", "route").encode()),
        ]
        self.inject(step, log_entry(b"0-0", fields))

    async def _op_inject_raw(self, step: dict[str, Any]) -> None:
        for raw in step["raws"]:
            self.inject(step, log_entry(b"0-0", [b"data", raw.encode()]))
            self.inject(step, log_entry(b"0-0", [b"key", raw.encode()]))

    def inject(self, step: dict[str, Any], entry) -> None:
        """Have a notice arrive."""
        for name in step["to"]:
            self.world.instances[name].storage.channel.hand_over([entry])

    async def _op_inject_ack(self, step: dict[str, Any]) -> None:
        event = step["event"]
        name = event["instance"]
        stranger = Report(
            instance=name, hub_id=name, epoch=0, revision=0, routes=0, failed={}, failed_total=0
        )
        await self.world.control.report(stranger, expires_s=5)

    async def _op_inject_ack_raw(self, step: dict[str, Any]) -> None:
        reports = f"{{{self.world.prefix}:routes}}:reports"
        for raw in step.get("raws", ["rubbish"]):
            self.world.server.command("HSET", reports, "rubbish", raw)

    async def _op_bulk_add(self, step: dict[str, Any]) -> None:
        for number in range(step["count"]):
            await self._op_add({**step, "id": f"{step['prefix']}{number}"})

    async def _op_bulk_remove(self, step: dict[str, Any]) -> None:
        for number in range(step["count"]):
            await self._op_remove({**step, "id": f"{step['prefix']}{number}"})

    async def _op_log_trim(self, step: dict[str, Any]) -> None:
        log = f"{{{self.world.prefix}:routes}}:log"
        self.world.server.command("XTRIM", log, "MAXLEN", str(step["keep"]))

    async def _op_log_reset(self, step: dict[str, Any]) -> None:
        del step
        base = f"{{{self.world.prefix}:routes}}"
        self.world.server.command("DEL", f"{base}:log", f"{base}:meta")

    async def _op_parallel(self, step: dict[str, Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for each in step["ops"]:
                group.create_task(getattr(self, f"_op_{each['op']}")(each))

    async def _op_advance(self, step: dict[str, Any]) -> None:
        # The hub's own timer for the comparison is 5 minutes; what it does is the comparison.
        if step.get("seconds", step.get("s", 0)) >= 240:
            await self._op_sync({"on": "all"})


def _accepted(result: str) -> set[str]:
    if result == "error":
        return {"client_error", "server_error", "not_found"}
    return {result}


def _same(state: dict[str, Any], want: dict[str, Any]) -> bool:
    ids = want["ids"]
    same_ids = len(state["ids"]) == ids if isinstance(ids, int) else state["ids"] == ids
    return (
        same_ids and state["refs"] == want["refs"] and state["running"] == sorted(want["running"])
    )
