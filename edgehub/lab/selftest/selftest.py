"""The self-test: measure the disk, kill a hub under load again and again, look for every message.

Owns the run; the hub under test is a process of its own. Invariants: it ends by itself, and leaves
no process behind, however it ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.lab.selftest.device import DEVICES, Device
from edgehub.lab.selftest.evidence import present
from edgehub.lab.selftest.file_system import file_system_of
from edgehub.lab.selftest.hub_process import HubProcess
from edgehub.lab.selftest.judge import Judge
from edgehub.lab.selftest.latency import DiskLatency, measure_disk
from edgehub.lab.selftest.ledger import Ledger
from edgehub.lab.selftest.report import Report
from edgehub.lab.selftest.scratch import PROBE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from edgehub.clock import Clock

SETTLE_TIMEOUT_S: Final = 30.0


class Options(Struct, frozen=True, kw_only=True):
    """What the command line asks for.

    Attributes:
        kills: How often the hub is killed, 1 or more.
        seconds: Time under load; the starts of the hub come on top.
    """

    kills: int
    seconds: float


class SelfTest:
    """One run.

    Args:
        options: What was asked for.
        folder: Prepared scratch folder.
        clock: All times and pauses.
        rng: The moments of the kills, and the devices' pauses.
        notify: Takes what is going on, a line at a time, for the terminal.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        *,
        clock: Clock,
        rng: Random,
        notify: Callable[[str], None],
    ) -> None:
        self._options = options
        self._folder = folder
        self._clock = clock
        self._rng = rng
        self._notify = notify
        self._ledger = Ledger(*(f"device-{number}" for number in range(1, DEVICES + 1)))

    async def run(self) -> Report:
        """Run to the end.

        Raises:
            SelfTestError: The hub does not start, ends by itself, or its files cannot be read; in
                an ExceptionGroup where it comes out of a task group.
            OSError: The disk refuses.
        """
        began_s = self._clock.monotonic()
        file_system = await asyncio.to_thread(file_system_of, self._folder)
        self._notify("measuring how long the disk takes")
        latency = await self._measure()
        starts_s = await self._load()
        self._notify("looking for every acknowledged message")
        judge = Judge(self._ledger)
        integrity = await present(self._folder, judge, self._clock)
        return Report(
            directory=str(self._folder.parent),
            file_system=file_system,
            latency=latency,
            starts_s=tuple(starts_s),
            findings=judge.findings(),
            integrity=integrity,
            elapsed_s=self._clock.monotonic() - began_s,
        )

    async def _measure(self) -> DiskLatency:
        probe = self._folder / PROBE
        await asyncio.to_thread(probe.mkdir)
        return await measure_disk(probe, self._clock)

    async def _load(self) -> list[float]:
        """Kill the hub while devices send; return the seconds of each start."""
        async with asyncio.TaskGroup() as group:
            hub = HubProcess(self._folder, group, self._clock)
            devices = [
                Device(device_id, hub, self._ledger, clock=self._clock, rng=self._rng)
                for device_id in self._ledger.devices
            ]
            try:
                self._notify("starting a hub")
                starts_s = [await hub.start()]
                senders = [group.create_task(device.run(), name="device") for device in devices]
                *lives_s, last_s = self._lives_s()
                for number, life_s in enumerate(lives_s, 1):
                    self._notify(
                        f"kill {number} of {len(lives_s)}, {self._ledger.acknowledged} messages "
                        "acknowledged so far"
                    )
                    await hub.outlives(life_s)
                    await hub.kill()
                    starts_s.append(await hub.start())
                await hub.outlives(last_s)
                for device in devices:
                    device.stop()
                self._notify("waiting for the last acknowledgements")
                await asyncio.wait(senders, timeout=SETTLE_TIMEOUT_S)
                for sender in senders:
                    sender.cancel()
                await hub.stop()
            finally:
                await hub.close()
        return starts_s

    def _lives_s(self) -> list[float]:
        """Cut the time under load at random moments: one part more than kills."""
        seconds = self._options.seconds
        moments = sorted(self._rng.uniform(0, seconds) for _ in range(self._options.kills))
        return [
            end - start for start, end in zip([0.0, *moments], [*moments, seconds], strict=True)
        ]
