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

    from edgehub.routes.tenant import RouteKey

CALLS_AT_ONCE = 50


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
        """Carry out one step, or begin it where the next one does not wait for it, and compare."""
        where = f"step {number} ({step['op']})"
        work = self.carry_out(step, where)
        if step.get("async"):
            self.world.background.append(self.world.group.create_task(work))
        else:
            await work
        await self.settle(step.get("within_s", SETTLE_S), step, where)

    async def carry_out(self, step: dict[str, Any], where: str) -> None:
        """Carry out one step and compare its result."""
        outcome = await getattr(self, f"_op_{step['op']}")(step)
        if "result" in step and outcome not in _accepted(step["result"]):
            self.differences.append(f"{where}: result {outcome}, want {step['result']}")
        if "repaired" in step and outcome != [step["repaired"]] * len(outcome):
            self.differences.append(f"{where}: repaired {outcome}, want {step['repaired']}")

    async def settle(self, within_s: float, step: dict[str, Any], where: str) -> None:
        """Wait until everything that is on its way has arrived, then compare."""
        wanted = step.get("after") or step.get("after_counts")
        lagging = step.get("lagging", ())
        world = self.world
        position = await world.control.position()

        def arrived(instance: Instance) -> bool:
            return instance.storage.channel.has_reached(position)

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
        await self.finish()
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

    async def finish(self) -> None:
        """Wait for the steps that run in the background."""
        while self.world.background:
            await self.world.background.pop()

    def named(self, step: dict[str, Any]) -> list[Instance]:
        """Return the hubs of a step, also those that do not run; all if it names none."""
        names = step.get("to", step.get("on", "all"))
        names = list(self.world.instances) if names == "all" else names
        names = [names] if isinstance(names, str) else names
        return [self.world.instances[name] for name in names]

    def key(self, step: dict[str, Any]) -> RouteKey:
        """Return the key of the route that a step is about."""
        return self.world.key(step["id"], step.get("tenant", HOME))

    def on(self, step: dict[str, Any]) -> list[Instance]:
        """Return the hubs of a step; all that can be asked if it names none."""
        named = self.named(step)
        if step.get("on", "all") == "all":
            return [each for each in named if each.serves]
        return named

    async def _op_add(self, step: dict[str, Any]) -> str:
        (instance,) = self.on(step)
        key = self.key(step) if "id" in step else None
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
        key = self.key(step)
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
        failed = {each["instance"] for each in applied.failed}
        repaired = by > want and applied.result == "complete" and step.get("lagging")
        word = "complete" if applied.result == "complete" else "timeout"
        if not repaired and (word, by) != (step["acks"]["result"], want):
            self.differences.append(f"acks: {applied}, want {step['acks']}")
        if failed & by:
            self.differences.append(f"acks: {failed & by} both failed and applied")

    async def _op_sync(self, step: dict[str, Any]) -> list[int]:
        if any(each.around.gate for each in self.on(step)):
            self.world.background.append(self.world.group.create_task(self.sync(step)))
            return []
        return await self.sync(step)

    async def sync(self, step: dict[str, Any]) -> list[int]:
        """Have hubs compare and repair; return how many ids each has changed."""
        repaired = []
        for instance in self.on(step):
            try:
                repaired.append((await instance.table.drift()).repaired)
            except StorageUnavailableError:
                repaired.append(0)
            self.judge_ready(step, instance)
        return repaired

    def judge_ready(self, step: dict[str, Any], instance: Instance) -> None:
        """Compare whether a hub is ready, if the step expects that."""
        ready, reason = instance.table.ready
        if step.get("ready", ready) != ready:
            self.differences.append(f"{step['op']}: {instance.name} ready is {ready}: {reason}")

    async def _op_settle(self, step: dict[str, Any]) -> None:
        del step

    async def _op_bus(self, step: dict[str, Any]) -> None:
        for instance in self.world.instances.values():
            instance.around.manual = step["mode"] == "manual"
            instance.around.down = step["mode"] == "down"
            instance.storage.channel.arrived.set()
        if step["mode"] in {"auto", "up"}:
            await self._op_deliver({"order": "fifo"})

    async def _op_deliver(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            channel = instance.storage.channel
            held, channel.held = channel.held, []
            if step["order"] == "lifo":
                held.reverse()
            channel.hand_over(held[:1] if step["order"] == "first_only" else held)

    async def _op_lose(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            instance.around.lose = step["next"]

    async def _op_duplicate(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            instance.around.doubles = step["times"]

    async def _op_partition(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            instance.around.cut = step["state"] == "on"
            instance.storage.channel.arrived.set()

    async def _op_stall(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            instance.around.stalled = step["state"] == "on"
            instance.storage.channel.arrived.set()

    async def _op_store_put(self, step: dict[str, Any]) -> None:
        key = self.key(step)
        content = read_body(self.world.body(step["config"]), key.tenant).content
        base = f"{{{self.world.prefix}:routes}}"
        raw = f"999999 {content.hash} 1 api 1 1"
        self.world.server.command("HSET", f"{base}:contents", content.hash, content.text)
        self.world.server.command("HSET", f"{base}:rows", str(key), raw)

    async def _op_store_put_raw(self, step: dict[str, Any]) -> None:
        rows = f"{{{self.world.prefix}:routes}}:rows"
        raw = step.get("raw", step.get("text", "rubbish"))
        self.world.server.command("HSET", rows, str(self.key(step)), raw)

    async def _op_store_delete(self, step: dict[str, Any]) -> None:
        rows = f"{{{self.world.prefix}:routes}}:rows"
        self.world.server.command("HDEL", rows, str(self.key(step)))

    async def _op_store_clear(self, step: dict[str, Any]) -> None:
        del step
        self.world.server.command("DEL", f"{{{self.world.prefix}:routes}}:rows")

    async def _op_store_fault(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            if step["state"] == "on":
                instance.around.faults.add(step["what"])
            else:
                instance.around.faults.discard(step["what"])

    async def _op_plugin_fault(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            each = self.world.hash(step["config"])
            if step["state"] == "on":
                instance.around.broken.add(each)
            else:
                instance.around.broken.discard(each)

    async def _op_drift(self, step: dict[str, Any]) -> None:
        (instance,) = self.on(step)
        key = self.key(step)
        content = None
        if step["kind"] != "missing":
            content = read_body(self.world.body(step["config"]), key.tenant).content
        await instance.table.live.change({key: content})

    async def _op_gate_full_read(self, step: dict[str, Any]) -> None:
        for instance in self.named(step):
            if step["state"] == "hold":
                instance.around.gate = asyncio.Event()
            elif instance.around.gate is not None:
                instance.around.gate.set()
                instance.around.gate = None
        if step["state"] != "hold":
            await self.finish()

    async def _op_kill(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            await instance.kill()

    async def _op_stop(self, step: dict[str, Any]) -> None:
        for instance in self.on(step):
            await instance.stop()

    async def _op_start(self, step: dict[str, Any]) -> None:
        for before in self.named(step):
            instance = Instance(self.world, before.name, before)
            self.world.instances[before.name] = instance
            if instance.around.gate is None:
                await instance.start()
            else:
                self.world.background.append(self.world.group.create_task(instance.start()))
                await asyncio.sleep(0.1)
            self.judge_ready(step, instance)

    async def _op_inject_event(self, step: dict[str, Any]) -> None:
        event = step["event"]
        fields = [
            *(b"key", f"{self.world.tenant(event.get('tenant', HOME))}/{event['id']}".encode()),
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
        for instance in self.named(step):
            instance.storage.channel.hand_over([entry])

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
        await self.bulk("add", step)

    async def _op_bulk_remove(self, step: dict[str, Any]) -> None:
        await self.bulk("remove", step)

    async def bulk(self, op: str, step: dict[str, Any]) -> None:
        """Make the calls of a bulk step, some at once."""
        ids = [f"{step['prefix']}{number}" for number in range(step["count"])]
        for start in range(0, len(ids), CALLS_AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for each in ids[start : start + CALLS_AT_ONCE]:
                    call = {**step, "op": op, "id": each}
                    group.create_task(self.carry_out(call, f"{step['op']} {each}"))

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
                group.create_task(self.carry_out(each, f"parallel {each['op']}"))

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
