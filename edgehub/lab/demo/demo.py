"""The demonstration: a gateway and its parent in one process, a thin link between them, a verdict.

Owns the two hubs, the link and the simulated world for one run; calls the hubs as the daemon does.
Invariant: it ends by itself, and what it leaves behind is the verdict alone.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.clock import SystemClock
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import EdgeHubError
from edgehub.hub.hub import Hub
from edgehub.lab.demo.ledger import DownTimes, Ledger
from edgehub.lab.demo.scenario import (
    GATEWAY,
    LINK_BIT_S,
    LINK_DELAY_S,
    PARENT,
    TIMELINE,
    TRAFFIC,
    Kind,
    Step,
    gateway_manifest,
    parent_manifest,
)
from edgehub.lab.demo.simulation import HOST, Collector, Device
from edgehub.lab.demo.snapshot import (
    LinkMeter,
    Snapshot,
    link_is_up,
    link_wait,
    queue_figures,
    rows_waiting,
)
from edgehub.lab.demo.thin_link import ThinLink
from edgehub.lab.demo.verdict import Verdict, judge, missing
from edgehub.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.lab.demo.view import View

TICK_S: Final = 0.05
START_TIMEOUT_S: Final = 15.0
# A message that is missing may be between two parts; one that stays missing is lost.
SETTLE_TIMEOUT_S: Final = 8.0
FORGET_AFTER_S: Final = 60.0
NEWS_LINES: Final = 6


class DemoError(EdgeHubError):
    """The demonstration could not go on."""


class Options(Struct, frozen=True, kw_only=True):
    """What the command line asks for.

    Attributes:
        round_s: Length of one round.
        forever: Go on with another round after each.
        seed: Seed of the devices' timing.
    """

    round_s: float
    forever: bool
    seed: int


def prepare(folder: Path) -> None:
    """Write manifests, password and identities into the run's own folder; blocks on the disk."""
    (folder / "gateway-routes.json").write_text(json.dumps(gateway_manifest()), "utf-8")
    (folder / "parent-routes.json").write_text(json.dumps(parent_manifest()), "utf-8")
    password = secrets.token_urlsafe()
    (folder / "password").write_text(password, "utf-8")
    with changing(folder / "identities") as identities:
        # The gateway speaks to its parent for all of its devices.
        identities[GATEWAY] = Identity(
            id=GATEWAY, password=PasswordHash.of(password.encode()), on_behalf=("*",)
        )


class Demo:
    """One run.

    Args:
        options: What was asked for.
        folder: Prepared folder that the run may fill.
        view: Where it is shown.
    """

    def __init__(self, options: Options, folder: Path, view: View) -> None:
        self._options = options
        self._folder = folder
        self._view = view
        self._clock = SystemClock()
        self._downs = DownTimes()
        self._ledger = Ledger(TRAFFIC, self._downs)
        self._sent: set[Kind] = set()
        """What devices send at the moment."""
        self._news: deque[str] = deque(maxlen=NEWS_LINES)
        self._stopping = False
        self._began_s = 0.0
        self._shown_s = 0.0
        self._parent: Hub
        self._gateway: Hub
        self._link: ThinLink
        self._meter: LinkMeter

    def stop(self) -> None:
        """End the run early, with a verdict on what happened so far."""
        self._stopping = True
        self._announce("stopping: what is on its way may arrive; Ctrl-C again stops at once")

    async def run(self) -> Verdict:
        """Run to the end and judge.

        Raises:
            DemoError: If a hub does not start or ends before its time.
        """
        async with asyncio.TaskGroup() as hubs:
            await self._start_hubs(hubs)
            try:
                with self._view.screen:
                    async with asyncio.TaskGroup() as world:
                        workers = await self._start_world(world)
                        verdict = await self._rounds()
                        for worker in workers:
                            worker.cancel()
            finally:
                self._gateway.stop()
                self._parent.stop()
                await self._link.close()
        return verdict

    async def _start_hubs(self, group: asyncio.TaskGroup) -> None:
        self._parent = Hub(
            Settings(
                hub_id=PARENT,
                data_dir=self._folder / "parent",
                manifest=self._folder / "parent-routes.json",
                mqtt={"port": 0, "identities_file": self._folder / "identities"},
                drain_timeout_s=2,
            )
        )
        await self._serve(group, self._parent, PARENT)
        self._link = ThinLink(
            HOST,
            self._parent.mqtt_port,
            up_bit_s=LINK_BIT_S,
            down_bit_s=LINK_BIT_S,
            delay_s=LINK_DELAY_S,
            clock=self._clock,
        )
        await self._link.open()
        self._meter = LinkMeter(self._link.up)
        self._gateway = Hub(
            Settings(
                hub_id=GATEWAY,
                data_dir=self._folder / "gateway",
                manifest=self._folder / "gateway-routes.json",
                mqtt={"port": 0},
                upstream={
                    "type": "mqtt",
                    "host": HOST,
                    "port": self._link.port,
                    "username": GATEWAY,
                    "password_file": self._folder / "password",
                },
                drain_timeout_s=2,
            )
        )
        await self._serve(group, self._gateway, GATEWAY)

    async def _serve(self, group: asyncio.TaskGroup, hub: Hub, name: str) -> None:
        async def serve() -> None:
            if not await hub.run():
                raise DemoError(f"the {name} hub ended with a failure; see its log lines above")

        group.create_task(serve(), name=f"hub[{name}]")
        async with asyncio.timeout(START_TIMEOUT_S):
            await hub.started.wait()

    async def _start_world(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        self._downs.down(self._clock.monotonic())
        workers = [group.create_task(self._link.run(), name="link")]
        port = self._parent.mqtt_port
        collector = Collector(PARENT, port=port, ledger=self._ledger, clock=self._clock)
        workers.append(group.create_task(collector.run(), name="collector"))
        async with asyncio.timeout(START_TIMEOUT_S):
            await collector.subscribed.wait()
        rng = Random(self._options.seed)  # noqa: S311 - the timing of devices, not a secret
        for traffic in TRAFFIC:
            for number in range(1, traffic.devices + 1):
                device = Device(
                    f"{traffic.kind}-{number:02d}",
                    traffic,
                    port=self._gateway.mqtt_port,
                    sent=self._sent,
                    ledger=self._ledger,
                    clock=self._clock,
                    rng=rng,
                )
                task = group.create_task(device.run(), name=device.device_id)
                workers.append(task)
        return workers

    async def _rounds(self) -> Verdict:
        self._began_s = self._clock.monotonic()
        while True:
            await self._round()
            verdict = await self._settle()
            if self._stopping or not self._options.forever or not verdict.passed:
                return verdict
            self._announce(f"round over: {verdict.figures[0]}")

    async def _round(self) -> None:
        """Run the timeline once while the devices send."""
        start_s = self._clock.monotonic()
        steps = deque(TIMELINE)
        self._sent.update(Kind)
        self._announce("devices send more than the link can carry")
        while not self._stopping and steps:
            await self._tick()
            elapsed_s = self._clock.monotonic() - start_s
            while steps and elapsed_s >= steps[0][0] * self._options.round_s:
                self._take(steps.popleft()[1])
        self._sent.clear()
        self._link.restore()

    def _take(self, step: Step) -> None:
        match step:
            case Step.CUT:
                self._link.cut()
                self._downs.down(self._clock.monotonic())
            case Step.RESTORE:
                self._link.restore()
            case Step.BULK_ENDS:
                self._sent.difference_update(each.kind for each in TRAFFIC if not each.is_vital)
            case Step.VITAL_ENDS:
                self._sent.clear()
        self._announce(step.value)

    async def _settle(self) -> Verdict:
        """Wait for what is in flight; what waits for the link may stay where it is."""
        deadline_s = self._clock.monotonic() + SETTLE_TIMEOUT_S
        while True:
            snapshot = await self._tick()
            vital = [a for a in self._ledger.accounts.values() if a.traffic.is_vital]
            settled = (
                not any(account.undelivered for account in vital)
                and snapshot.parent_waiting == 0
                and missing(self._ledger, snapshot) == 0
            )
            drained = not any(queue.waiting for queue in snapshot.queues)
            if (settled and drained) or self._clock.monotonic() > deadline_s:
                self._view.show(snapshot)
                return judge(self._ledger, snapshot, link_use_busy=self._meter.use_busy)

    async def _tick(self) -> Snapshot:
        await self._clock.sleep(TICK_S)
        now_s = self._clock.monotonic()
        status = self._gateway.status()
        link_up = link_is_up(status) and not self._link.is_cut
        if link_up:
            self._downs.up(now_s)
        else:
            self._downs.down(now_s)
        self._meter.sample(now_s, link_up=link_up, waiting=rows_waiting(status))
        for account in self._ledger.accounts.values():
            if account.traffic.ttl_s is not None:
                account.lapse(now_s - account.traffic.ttl_s - FORGET_AFTER_S)
        snapshot = Snapshot(
            elapsed_s=now_s - self._began_s,
            link_up=link_up,
            link_wait=link_wait(status),
            link_use=self._meter.use_now,
            queues=queue_figures(status, self._ledger),
            acknowledged=self._ledger.acknowledged,
            delivered=self._ledger.delivered,
            parent_waiting=rows_waiting(self._parent.status()),
            news=tuple(self._news),
        )
        if now_s - self._shown_s >= self._view.interval_s:
            self._shown_s = now_s
            self._view.show(snapshot)
        return snapshot

    def _announce(self, line: str) -> None:
        self._news.append(f"{self._clock.monotonic() - self._began_s:6.1f} s  {line}")
