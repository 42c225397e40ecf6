"""The run of a scenario: hands its events to the gateways and writes down what came of them.

Owns a manual clock and everything on it; decides nothing: outcomes are those of the daemon's own
objects.
"""

from __future__ import annotations

import asyncio
import functools
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from edgehub.clock import ManualClock
from edgehub.devices.affinity.data import Uplink
from edgehub.devices.affinity.join import JoinRequest
from edgehub.devices.faults import DeviceConnectionError, DeviceError
from edgehub.devices.source import DeviceProfile, SessionState, StoredDevice
from edgehub.lab.simulation.form import read_scenario
from edgehub.lab.simulation.gateway import Gateway
from edgehub.lab.simulation.network import Network, in_process
from edgehub.lab.simulation.virtual_time import run_on
from edgehub.lora.counters import full_counter

if TYPE_CHECKING:
    from edgehub.devices.affinity.outcome import FrameOutcome, Handling
    from edgehub.lab.simulation.form import Event, Scenario
    from edgehub.lab.simulation.network import MakeCoordinator

NOT_HEARD = {"result": "not_heard", "reason": "gateway_down", "elected_at_ms": None}
LOST = {"result": "failed", "reason": "gateway_down", "elected_at_ms": None}


def simulate(
    form: Any, *, delay_ms: int | None = None, make_coordinator: MakeCoordinator = in_process
) -> dict[str, Any]:
    """Run one scenario.

    Args:
        form: See `read_scenario`.
        delay_ms: Takes the place of its own delay, None = its own.
        make_coordinator: Makes the coordinator of the gateways.

    Returns:
        Its outcome: `id`, `delay_ms`, `uplinks`, `joins`, `downlinks`, `close_replies`,
        `connection_log`, `notifications`, `final`, and in `ignored` the members that the form does
        not know.

    Raises:
        ScenarioError: The form cannot be read.
    """
    scenario = read_scenario(form, delay_ms=delay_ms)
    clock = ManualClock()
    return run_on(clock, _Run(clock, scenario, make_coordinator).run())


class _Run:
    """One scenario under way."""

    def __init__(
        self, clock: ManualClock, scenario: Scenario, make_coordinator: MakeCoordinator
    ) -> None:
        self._clock = clock
        self._scenario = scenario
        self._network = Network(clock, scenario, make_coordinator)
        self._gateways: dict[str, Gateway] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._sessions: dict[str, str] = {}
        self._joins = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._open_events = len(scenario.events)
        self._all_done = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Run it, and return its outcome."""
        self._prepare()
        async with asyncio.TaskGroup() as self._tasks:
            for name in self._scenario.gateways:
                self._gateways[name] = Gateway(name, self._network)
                await self._start(name)
            for event in self._scenario.events:
                self._clock.call_later(event.t_ms / 1000, functools.partial(self._fire, event))
            if self._scenario.events:
                await self._all_done.wait()
            await self._settle()
            outcome = self._outcome()
            for run in self._runs.values():
                run.cancel()
        return outcome

    def _prepare(self) -> None:
        scenario, config = self._scenario, self._scenario.config
        for device in scenario.devices:
            twin = scenario.twins.get(device)
            session = (
                SessionState()
                if twin is None
                else SessionState(
                    session=twin.session, f_cnt_up=twin.f_cnt_up, dev_nonces=tuple(twin.dev_nonces)
                )
            )
            self._sessions[device] = session.session
            # Idle times are events of the scenario, so no connection counts its own here.
            profile = DeviceProfile(
                device_id=device,
                deduplication=config.dedup,
                gateway_id=config.pinned_to,
                activation=config.activation,
                relaxed_counters=config.relaxed_counters,
            )
            self._network.twins[device] = StoredDevice(profile=profile, session=session)
        for device, record in scenario.records.items():
            self._network.coordinator.record(device, record.f_cnt, record.gateway, generation=0)

    async def _start(self, name: str) -> None:
        started = asyncio.Event()
        gateway = self._gateways[name]
        self._runs[name] = self._tasks.create_task(gateway.run(started), name=f"gateway[{name}]")
        await started.wait()

    async def _settle(self) -> None:
        """Wait until nothing is left to do at this moment, and all notices have arrived."""
        await self._clock.sleep(0)
        while any(
            self._network.takes_notices(name)
            and gateway.flags.position != self._network.coordinator.position(name)
            for name, gateway in self._gateways.items()
        ):
            await self._clock.sleep(self._scenario.notify_latency_ms / 1000)

    def _fire(self, event: Event) -> None:
        gateway = self._gateways.get(event.gateway)
        if gateway is None or event.type.startswith(("gateway_", "notify_")):
            task = self._tasks.create_task(self._change(event))
        elif event.gateway in self._network.down:
            self._answer(event, dict(NOT_HEARD))
            self._done()
            return
        else:
            task = gateway.tasks.create_task(self._hand_in(event, gateway))
        task.add_done_callback(lambda _task: self._done())

    def _done(self) -> None:
        self._open_events -= 1
        if not self._open_events:
            self._all_done.set()

    async def _change(self, event: Event) -> None:
        network, name = self._network, event.gateway
        match event.type:
            case "gateway_down" if name not in network.down:
                network.down.add(name)
                self._runs[name].cancel()
                self._gateways[name].lose_connections()
            case "gateway_up" if name in network.down:
                network.down.discard(name)
                await self._start(name)
            case "notify_unreachable":
                network.unreachable.add(name)
            case "notify_reachable":
                network.unreachable.discard(name)
            case "coordinator_down" | "coordinator_up":
                network.is_coordinator_down = event.type == "coordinator_down"
            case "coordinator_lock_busy":
                network.busy_until_ms[event.device] = event.t_ms + event.duration_ms
            case "coordinator_state_expires":
                network.coordinator.forget(event.device)
            case _:
                pass  # the gateway is down, or up, already
        network.change()

    async def _hand_in(self, event: Event, gateway: Gateway) -> None:
        self._answer(event, dict(LOST))
        try:
            answer = await self._act(event, gateway)
        except DeviceError as exc:
            answer = {"result": "failed", "reason": exc.reason, "elected_at_ms": None}
        self._answer(event, answer)

    async def _act(self, event: Event, gateway: Gateway) -> dict[str, Any]:
        devices, device = gateway.devices, event.device
        match event.type:
            case "uplink":
                return await self._uplink(event, gateway)
            case "join_request":
                return self._described(await self._join(event, gateway))
            case "cache_refresh":
                await devices.refresh(device)
            case "close_request":
                return {"status": await self._close(event, gateway)}
            case "idle_timeout":
                if known := devices.known(device):
                    known.connection.request_close()
            case _:
                assert event.type == "class_c_downlink", event.type
                spent = event.upstream_ms
                if not await devices.downlink(device, lambda: self._network.spend(spent)):
                    return {"result": "dropped", "reason": "not_owner"}
                return {"result": "processed"}
        return {}

    async def _close(self, event: Event, gateway: Gateway) -> int:
        """Return the status with which a release request is answered."""
        device = event.device
        if "payload" in event.model_fields_set:
            payload = event.payload
            named = payload.get("dev_eui") if isinstance(payload, dict) else None
            if not isinstance(named, str) or not named:
                return HTTPStatus.BAD_REQUEST
            device = named
        if device not in self._network.twins:
            return HTTPStatus.NOT_FOUND
        await gateway.devices.close(device)
        return HTTPStatus.OK

    async def _uplink(self, event: Event, gateway: Gateway) -> dict[str, Any]:
        session = self._sessions.get(event.device, "")
        answered_ms: list[int] = []

        def counter(stored: StoredDevice) -> int | None:
            if (stored.profile.device_id, stored.session.session) != (event.device, session):
                return None
            f_cnt, wire = event.f_cnt, event.wire_f_cnt
            # The air carries half of a counter; the MIC is right with the whole one alone.
            completed = (
                (None, f_cnt)
                if wire is None
                else (wire, full_counter(wire, stored.session.f_cnt_up))
            )
            return f_cnt if f_cnt in completed else None

        async def handle(handling: Handling) -> None:
            if handling.upstream:
                await self._network.spend(event.upstream_ms)
                if event.upstream_fails:
                    raise DeviceConnectionError(event.device, "the upstream refused it")
            if handling.answer and event.confirmed:
                answered_ms.append(self._network.now_ms())

        uplink = Uplink(
            address=self._network.address_of(event.device),
            confirmed=event.confirmed,
            station=event.station,
            key=f"{session}/{event.f_cnt}/{event.mic}",
            counter=counter,
        )
        outcome = await gateway.devices.data(uplink, handle)
        answer = self._described(outcome) | {"downlink": bool(answered_ms)}
        if answered_ms:
            answer |= {"answered_at_ms": answered_ms[0], "ack_only": not outcome.upstream}
        return answer

    async def _join(self, event: Event, gateway: Gateway) -> FrameOutcome:

        async def accept(stored: StoredDevice) -> SessionState:
            self._joins += 1
            self._sessions[event.device] = session = f"join-{self._joins}"
            return replace(stored.session, session=session)

        request = JoinRequest(
            device_id=event.device,
            dev_nonce=event.dev_nonce,
            station=event.station,
            key=f"{event.dev_nonce}/{event.mic}/{event.mic_ok}",
            fits=lambda _stored: event.mic_ok,
        )
        return await gateway.devices.join(request, accept)

    def _described(self, outcome: FrameOutcome) -> dict[str, Any]:
        at_ms = outcome.elected_ms
        answer: dict[str, Any] = {
            "result": str(outcome.result),
            "elected_at_ms": None if at_ms is None else at_ms - self._network.started_ms,
            "upstream": outcome.upstream,
            "marked_duplicate": outcome.duplicate,
            "twin_written": outcome.saved,
        }
        if outcome.reason is not None:
            answer["reason"] = str(outcome.reason)
        return answer

    def _answer(self, event: Event, answer: dict[str, Any]) -> None:
        self._answers[event.index] = answer

    def _outcome(self) -> dict[str, Any]:
        return {
            "id": self._scenario.id,
            "delay_ms": self._scenario.config.delay_ms,
            "uplinks": self._answers_of("uplink"),
            "joins": self._answers_of("join_request"),
            "downlinks": self._answers_of("class_c_downlink"),
            "close_replies": [each.get("status") for each in self._answers_of("close_request")],
            "connection_log": self._network.connection_log,
            "notifications": self._network.notifications,
            "final": {"coordinator": self._records(), "gateways": self._final_gateways()},
            "ignored": list(self._scenario.ignored),
        }

    def _answers_of(self, type_: str) -> list[dict[str, Any]]:
        return [
            {
                "event": event.index,
                "t_ms": event.t_ms,
                "gateway": event.gateway,
                "device": event.device,
            }
            | self._answers[event.index]
            for event in self._scenario.events
            if event.type == type_
        ]

    def _records(self) -> dict[str, Any] | None:
        records: dict[str, Any] = {}
        for device in self._scenario.devices:
            if record := self._network.coordinator.known(device):
                records[device] = {"f_cnt": record.f_cnt, "gateway": record.owner}
        if len(records) > 1:
            return records
        return next(iter(records.values()), None)

    def _final_gateways(self) -> dict[str, Any]:
        final: dict[str, Any] = {}
        for name, gateway in self._gateways.items():
            if name in self._network.down:
                final[name] = {"down": True}
                continue
            states = {
                device: {
                    "ownership": str(gateway.flags.of(device)),
                    "connection": "open" if gateway.is_open(device) else "closed",
                    "cached": gateway.has_cached(device),
                }
                for device in self._scenario.devices
            }
            final[name] = states if len(states) > 1 else states[self._scenario.devices[0]]
        return final
