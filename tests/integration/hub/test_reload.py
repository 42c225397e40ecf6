"""A whole hub whose configuration changes: what is replaced, what goes on, what becomes of rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import EdgeHubError
from edgehub.hub.endpoints import REPLACE_DRAIN_S
from edgehub.hub.hub import Hub
from edgehub.settings import Settings
from edgehub.settings.origin import LoadedSettings
from tests.support.journal_format import read_folder
from tests.support.mqtt_peer import mqtt_peer
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

ALL_UPSTREAM = {"all": {"route": "FROM /messages/* INTO $upstream", "priority": 3}}


class Bench:
    """A running hub, the clock it runs on, and the settings that its next reload finds."""

    def __init__(self, folder: Path, clock: ManualClock, **settings: Any) -> None:
        self.folder = folder
        self.clock = clock
        self.settings: dict[str, Any] = {
            "hub_id": "gw",
            "data_dir": folder / "data",
            "manifest": folder / "m.json",
            "mqtt": {"port": 0},
            **settings,
        }
        self.hub = Hub(Settings(**self.settings), reread=self._read, clock=clock)

    def manifest(self, routes: dict[str, object], ttl_s: int = 7200) -> None:
        """Write the manifest."""
        document = {
            "schemaVersion": "1.1",
            "routes": routes,
            "storeAndForwardConfiguration": {"timeToLiveSecs": ttl_s},
        }
        (self.folder / "m.json").write_text(json.dumps(document), "utf-8")

    async def reload(self, **settings: Any) -> dict[str, Any]:
        """Change settings and reload; the drain of replaced endpoints is let run out."""
        self.settings |= settings
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.command("config reload"))
            while not task.done():
                await self.clock.advance(REPLACE_DRAIN_S / 10)
        return task.result()

    async def command(self, name: str, **arguments: object) -> Any:
        """Carry out a command of the control socket."""
        return await self.hub.operations[name](arguments)

    async def publish(self, bodies: list[bytes], device_id: str = "press-1") -> None:
        """Publish as a device and wait for the acknowledgements."""
        port = self.hub.mqtt_port
        async with aiomqtt.Client("127.0.0.1", port, identifier=device_id) as client:
            for body in bodies:
                await client.publish(f"devices/{device_id}/messages/events/", body, qos=1)

    def depths(self) -> dict[str, int]:
        """Return the rows of each queue."""
        return {queue["id"]: queue["depth"] for queue in self.hub.status()["queues"]}

    async def until(self, condition: Any, *, step_s: float = 0.0) -> None:
        """Wait until a condition on statistics holds, letting the manual clock go on."""
        async with asyncio.timeout(10):
            while not condition():
                await self.clock.advance(step_s)

    def _read(self) -> LoadedSettings:
        return LoadedSettings(settings=Settings(**self.settings), origins={})


@contextlib.asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    """Run the hub for the length of the block and stop it in order."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bench.hub.run(), name="hub")
        async with asyncio.timeout(5):
            await bench.hub.started.wait()
        try:
            yield bench
        finally:
            bench.hub.stop()
            async with asyncio.timeout(10):
                while not task.done():
                    await bench.clock.advance(1)
            assert task.result()


def upstream(port: int, **more: object) -> dict[str, object]:
    """Return the settings of an MQTT endpoint on loopback."""
    return {"type": "mqtt", "host": "127.0.0.1", "port": port, **more}


def bodies(count: int, start: int = 0) -> list[bytes]:
    """Return numbered bodies."""
    return [b"%d" % number for number in range(start, start + count)]


async def test_a_long_back_off_is_not_waited_for(tmp_path: Path) -> None:
    """C-05: with the next try a minute away, a reload with the right address connects at once."""
    bench = Bench(tmp_path, ManualClock(), upstream=upstream(free_port()))
    bench.manifest(ALL_UPSTREAM)
    async with running(bench), mqtt_peer() as peer:
        await bench.publish(bodies(5))
        for _ in range(8):
            await bench.clock.advance(60)
        before = bench.clock.monotonic()
        bench.settings["upstream"] = upstream(peer.port)
        outcome = await bench.command("config reload")
        assert outcome["endpoints"]["replaced"] == ["upstream"]
        await peer.until(lambda: len(peer.published) == 5)
        assert bench.clock.monotonic() == before
        assert peer.published == bodies(5)


async def test_a_password_that_was_corrected_is_reported(tmp_path: Path) -> None:
    """No setting changed, but what the file holds: that is an outcome, once."""
    secret = tmp_path / "secret"
    secret.write_text("wrong", "utf-8")
    bench = Bench(
        tmp_path,
        ManualClock(),
        upstream=upstream(free_port(), username="gw", password_file=secret),
    )
    bench.manifest(ALL_UPSTREAM)
    async with running(bench):
        assert (await bench.reload())["outcome"] == "unchanged"
        secret.write_text("right", "utf-8")
        outcome = await bench.reload()
        assert outcome["outcome"] == "applied"
        assert outcome["files_changed"] == ["upstream.password_file"]
        assert outcome["applied"] == []
        assert (await bench.reload())["outcome"] == "unchanged"
        secret.unlink()
        outcome = await bench.reload()
        assert [fault["key"] for fault in outcome["faults"]] == ["upstream.password_file"]


async def test_a_running_hub_explains_by_the_routes_in_force(tmp_path: Path) -> None:
    """Those of its manifest and those that were added since, and with its own name."""
    bench = Bench(tmp_path, ManualClock())
    bench.manifest(ALL_UPSTREAM)
    async with running(bench):
        own = "FROM /messages/* WHERE $connectionDeviceId = 'press-1' INTO $upstream"
        body = {"route": own, "priority": 1}
        assert (await bench.command("route put", id="own", body=body))["created"]
        document = await bench.command("route explain", message={"device": "press-1"})
        assert document["of"] == "hub"
        verdicts = {verdict["route"]: verdict for verdict in document["routes"]}
        assert verdicts["own"]["outcome"] == "routed"
        assert verdicts["all"] | {"reason": ""} == {
            "route": "all",
            "endpoint": "upstream",
            "priority": 3,
            "ttl_s": 7200,
            "outcome": "beaten",
            "reason": "",
            "winner": "own",
            "line": None,
            "column": None,
        }
        with pytest.raises(EdgeHubError, match="unknown field `devize`"):
            await bench.command("route explain", message={"devize": "press-1"})


async def test_time_without_an_upstream_is_unserved_in_the_journal(tmp_path: Path) -> None:
    """Its link lines say so until one is named; a row that waited for it waited offline."""
    bench = Bench(tmp_path, ManualClock(), upstream=None)
    bench.manifest(ALL_UPSTREAM)
    async with running(bench), mqtt_peer() as peer:
        await bench.publish(bodies(1))
        await bench.clock.advance(61)
        await bench.reload(upstream=upstream(peer.port))
        await peer.until(lambda: len(peer.published) == 1)
        await bench.until(lambda: bench.depths() == {"upstream_Pri3": 0}, step_s=0.01)
        await bench.reload(upstream=None)
        await bench.command("journal plan", target="report", close=True)
        lines = read_folder(tmp_path / "data" / "journal")
    links = [(line["endpoint"], line["state"]) for line in lines if line["event"] == "link"]
    states = ("unserved", "down", "up", "down", "unserved")
    assert links == [("upstream", state) for state in states]
    [sent] = [line for line in lines if line["event"] == "sent"]
    assert sent["offline_ms"] >= 61_000
    assert sent["rate_ms"] < 1_000


async def test_the_journal_has_what_is_in_force_and_what_the_link_was_given(tmp_path: Path) -> None:
    """Settings at the start, at a reload and once routes have changed; bytes and durations."""
    async with mqtt_peer() as peer:
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(peer.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench):
            peer.acknowledge = False
            await bench.publish(bodies(1))
            await peer.until(lambda: len(peer.unconfirmed) == 1)
            await bench.clock.advance(2)
            peer.confirm(1)
            await bench.until(lambda: bench.depths() == {"upstream_Pri3": 0}, step_s=0.01)
            await bench.reload(upstream=upstream(peer.port, rate_bytes_s_max=4000))
            await bench.reload()
            own = "FROM /messages/* WHERE $connectionDeviceId = 'press-1' INTO $upstream"
            await bench.command("route put", id="own", body={"route": own, "priority": 1})
            await bench.command("route put", id="more", body={"route": own, "priority": 2})
            await bench.clock.advance(61)
            await bench.command("journal plan", target="report", close=True)
            lines = read_folder(tmp_path / "data" / "journal")
    settings = [line for line in lines if line["event"] == "settings"]
    rates = [line["endpoints"]["upstream"].get("rate_bytes_s_max") for line in settings]
    assert rates == [None, 4000, 4000]
    assert [line["route_count"] for line in settings] == [1, 1, 3]
    (route,) = settings[0]["route_table"]
    assert route == {
        "name": "all",
        "endpoint": "upstream",
        "priority": 3,
        "ttl_ms": 7_200_000,
        "ttl_from": "store",
    }
    [sent] = [line for line in lines if line["event"] == "sent"]
    assert 2000 <= sent["attempt_ms"] < 4000
    [traffic] = [line for line in lines if line["event"] == "traffic"]
    assert traffic["bytes"] > len(bodies(1)[0])


async def test_rows_in_flight_leave_again_through_the_new_endpoint(tmp_path: Path) -> None:
    """What the old peer did not confirm goes back to its place, so the order holds."""
    async with mqtt_peer() as old, mqtt_peer() as new:
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(old.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench):
            old.acknowledge = False
            await bench.publish(bodies(20))
            await old.until(lambda: len(old.published) >= 3)
            old.confirm(2)
            await bench.until(lambda: bench.depths() == {"upstream_Pri3": 18}, step_s=0.01)
            outcome = await bench.reload(upstream=upstream(new.port))
            assert outcome["endpoints"]["replaced"] == ["upstream"]
            await bench.publish(bodies(5, 20))
            await new.until(lambda: len(new.published) == 23)
            assert new.published == bodies(23, 2)
            await bench.until(lambda: bench.depths() == {"upstream_Pri3": 0}, step_s=0.01)
        assert not old.is_connected


async def test_what_the_old_peer_confirms_meanwhile_is_not_sent_again(tmp_path: Path) -> None:
    """The drain of a replaced endpoint waits for confirmations, so that few rows come twice."""
    async with mqtt_peer() as old, mqtt_peer() as new:
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(old.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench):
            old.acknowledge = False
            await bench.publish(bodies(4))
            await old.until(lambda: len(old.published) == 4)
            bench.settings["upstream"] = upstream(new.port)
            async with asyncio.TaskGroup() as group:
                reload = group.create_task(bench.command("config reload"))
                await bench.until(lambda: bench.hub.status()["endpoints"][0]["state"] == "draining")
                old.confirm()
            assert reload.result()["outcome"] == "applied"
            await bench.publish([b"later"])
            await new.until(lambda: bool(new.published))
            assert new.published == [b"later"]


async def test_the_peer_changes_again_and_again_under_load(tmp_path: Path) -> None:
    """Nothing is lost, and first arrivals over both peers come in the order of sending."""
    async with mqtt_peer() as one, mqtt_peer() as other:
        one.published = other.published
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(one.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench), asyncio.TaskGroup() as group:
            sending = group.create_task(bench.publish(bodies(600)))
            for turn in range(12):
                await bench.until(
                    lambda n=turn: len(one.published) > 40 * n or sending.done(), step_s=0.01
                )
                await bench.reload(upstream=upstream((other, one)[turn % 2].port))
            await sending
            await bench.until(lambda: bench.depths() == {"upstream_Pri3": 0}, step_s=0.01)
        assert list(dict.fromkeys(one.published)) == bodies(600)


async def test_rules_and_bounds_change_without_a_new_connection(tmp_path: Path) -> None:
    """Order, attempts, ages, the head-of-line time and the window need no new link."""
    async with mqtt_peer() as peer:
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(peer.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench):
            await peer.until(lambda: peer.is_connected)
            peer.acknowledge = False
            outcome = await bench.reload(
                upstream=upstream(
                    peer.port, order="skip", max_attempts=3, head_of_line_ms=100, in_flight_max=2
                )
            )
            assert outcome["endpoints"]["adjusted"] == ["upstream"]
            assert outcome["applied"] == [
                "upstream.order",
                "upstream.max_attempts",
                "upstream.head_of_line_ms",
                "upstream.in_flight_max",
            ]
            await bench.publish(bodies(6))
            await peer.until(lambda: len(peer.published) == 2)
            peer.acknowledge = True
            peer.confirm()
            await peer.until(lambda: len(peer.published) == 6)
            assert (peer.connects, peer.unconfirmed_most) == (1, 2)


async def test_an_endpoint_that_is_gone_leaves_orphans_until_it_is_back(tmp_path: Path) -> None:
    """Queues of a removed endpoint are shown as orphaned; named again, their rows flow."""
    out = tmp_path / "lab.jsonl"
    peer_away = {"lab": upstream(free_port())}
    bench = Bench(tmp_path, ManualClock(), endpoints=peer_away)
    bench.manifest({"lab": 'FROM /messages/* INTO Endpoint("lab")'})
    async with running(bench):
        await bench.publish(bodies(3))
        refused = await bench.reload(endpoints={})
        assert refused["outcome"] == "refused"
        assert 'no endpoint "lab"' in refused["faults"][0]["reason"]
        assert bench.depths() == {"lab": 3}
        bench.manifest(ALL_UPSTREAM)
        outcome = await bench.reload(endpoints={})
        assert outcome["endpoints"]["removed"] == ["lab"]
        status = bench.hub.status()
        assert [queue["orphaned"] for queue in status["queues"]] == [True]
        assert "'lab' are orphaned" in status["warnings"][0]
        outcome = await bench.reload(endpoints={"lab": {"type": "file", "path": out}})
        assert outcome["endpoints"]["added"] == ["lab"]
        await bench.until(lambda: bench.depths() == {"lab": 0}, step_s=0.01)
    lines = out.read_text("utf-8").splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["0", "1", "2"]


async def test_devices_go_on_listening_through_a_new_endpoint(tmp_path: Path) -> None:
    """A device that subscribed before the reload is subscribed for at the new peer."""
    async with mqtt_peer() as old, mqtt_peer() as new:
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(old.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench):
            port = bench.hub.mqtt_port
            async with aiomqtt.Client("127.0.0.1", port, identifier="press-1") as client:
                await client.subscribe("devices/press-1/messages/devicebound/#", qos=1)
                await old.until(lambda: old.subscribes == 1)
                await bench.reload(upstream=upstream(new.port))
                await new.until(lambda: new.subscribes == 1)


async def test_identities_are_part_of_the_whole(tmp_path: Path) -> None:
    """A wrong identities file stops the reload; a right one closes whom it no longer has."""
    file = tmp_path / "identities"
    with changing(file) as entries:
        entries["press-1"] = Identity(id="press-1", password=PasswordHash.of(b"secret"))
    bench = Bench(tmp_path, ManualClock(), mqtt={"port": 0, "identities_file": file})
    bench.manifest(ALL_UPSTREAM)
    async with running(bench), _signed_in(bench) as client:
        good = file.read_text("utf-8")
        file.write_text("no json\n", "utf-8")
        refused = await bench.reload(drain_timeout_s=3)
        assert refused["outcome"] == "refused"
        assert refused["faults"][0]["key"] == f"{file}:1"
        assert bench.hub.status()["mqtt"]["clients"] == 1
        file.write_text(good.replace("press-1", "press-2"), "utf-8")
        outcome = await bench.reload()
        assert outcome["identities_changed"]
        assert outcome["applied"] == ["drain_timeout_s"]
        async with asyncio.timeout(5):
            with pytest.raises(aiomqtt.MqttError):
                await anext(aiter(client.messages))


async def test_the_clean_up_mode_changes_while_rows_wait(tmp_path: Path) -> None:
    """Rows that expired behind a live one go as soon as the whole queue is looked at."""
    bench = Bench(tmp_path, ManualClock(), store={"check_entire_queue_on_cleanup": False})
    bench.manifest(ALL_UPSTREAM, ttl_s=86_400)
    async with running(bench):
        await bench.publish([b"long"])
        bench.manifest(ALL_UPSTREAM, ttl_s=20)
        await bench.reload()
        await bench.publish(bodies(4))
        for _ in range(20):
            await bench.clock.advance(5)
        assert bench.depths() == {"upstream_Pri3": 5}
        await bench.reload(store={"check_entire_queue_on_cleanup": True})
        await bench.until(lambda: bench.depths() == {"upstream_Pri3": 1}, step_s=1)


async def test_a_stop_ends_a_reload_that_drains(tmp_path: Path) -> None:
    """The hub stops in order, the rows stay, and whoever asked for the reload is told."""
    async with mqtt_peer() as old:
        bench = Bench(tmp_path, ManualClock(), upstream=upstream(old.port))
        bench.manifest(ALL_UPSTREAM)
        async with running(bench):
            old.acknowledge = False
            await bench.publish(bodies(3))
            await old.until(lambda: len(old.published) == 3)
            bench.settings["upstream"] = upstream(free_port())
            async with asyncio.TaskGroup() as group:
                reload = group.create_task(_refusal_of(bench))
                await bench.until(lambda: bench.hub.status()["endpoints"][0]["state"] == "draining")
                bench.hub.stop()
            assert "is stopping" in reload.result()
        assert await _stored(tmp_path) == 3


async def test_requests_that_come_together_are_all_answered(tmp_path: Path) -> None:
    """Reloads run one after the other, and each asker gets an outcome."""
    bench = Bench(tmp_path, ManualClock())
    bench.manifest(ALL_UPSTREAM)
    async with running(bench):
        bench.settings["drain_timeout_s"] = 7
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*(bench.command("config reload") for _ in range(4)))
        assert {outcome["outcome"] for outcome in outcomes} <= {"applied", "unchanged"}
        assert outcomes[0]["outcome"] == "applied"


async def test_an_id_that_is_added_meanwhile_refuses_the_reload(tmp_path: Path) -> None:
    """Between the check of a manifest and its coming into force; nothing of it is in force then."""
    bench = Bench(tmp_path, ManualClock())
    bench.manifest(ALL_UPSTREAM)
    async with running(bench):
        [routes] = [part for part in bench.hub.parts if part.name == "routes"]
        # As if the id came right after the check.
        routes.check = lambda _configuration: asyncio.sleep(0)
        route = "FROM /messages/* INTO $upstream"
        await bench.command("route put", id="new", body=route)
        bench.manifest({"new": route})
        bench.settings["drain_timeout_s"] = 7
        outcome = await bench.command("config reload")
        assert (outcome["outcome"], outcome["faults"][0]["route"]) == ("refused", "new")
        assert bench.hub.status()["routing_table"]["routes"] == len(ALL_UPSTREAM) + 1
        bench.manifest(ALL_UPSTREAM)
        assert (await bench.command("config reload"))["outcome"] == "applied"


async def test_rates_of_the_queues_show_what_a_manifest_needs(tmp_path: Path) -> None:
    """Disk need is measured bytes per second times the new time to live, and says over what."""
    bench = Bench(tmp_path, ManualClock())
    bench.manifest(ALL_UPSTREAM)
    after = {
        "schemaVersion": "1.1",
        "routes": {"all": {"route": "FROM /messages/* INTO $upstream", "priority": 1}},
        "storeAndForwardConfiguration": {"timeToLiveSecs": 600},
    }
    async with running(bench):
        await bench.publish(bodies(10))
        await bench.clock.advance(20)
        size = bench.hub.status()["queues"][0]["bytes"]
        document = await bench.command("manifest diff", text=json.dumps(after), file="n.json")
        new = next(queue for queue in document["queues"] if queue["id"] == "upstream_Pri1")
        assert (new["fate"], new["rate_is"]) == ("new", "measured")
        assert new["rate_bytes_s"] == pytest.approx(size / 20, rel=0.1)
        assert new["need_bytes"] == pytest.approx(size / 20 * 600, rel=0.1)
        # What waits in the old class has to fit beside it.
        assert document["disk"]["need_bytes"] == pytest.approx(size * 31, rel=0.1)
        assert document["disk"]["fits"] is True
        assert document["disk"]["unmeasured_routes"] == []


def _signed_in(bench: Bench) -> aiomqtt.Client:
    return aiomqtt.Client(
        "127.0.0.1",
        bench.hub.mqtt_port,
        identifier="press-1",
        username="press-1",
        password="secret",
    )


async def _refusal_of(bench: Bench) -> str:
    with pytest.raises(EdgeHubError) as refused:
        await bench.command("config reload")
    return str(refused.value)


async def _stored(folder: Path) -> int:
    bench = Bench(folder, ManualClock())
    async with running(bench):
        return sum(bench.depths().values())
