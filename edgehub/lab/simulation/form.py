"""The form of a scenario: what one may write, and what it becomes.

Owns names and defaults of the form `edgehub-affinity/1`. Mistakes are reported with their place; a
member that the form does not know is listed and otherwise passed over, unless it looks like a
misspelt one.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any, Final

from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.connection import KEEP_ALIVE_S_MIN
from edgehub.devices.source import Activation, Deduplication
from edgehub.errors import EdgeHubError

F_CNT_MAX: Final = 2**32 - 1
WHOLE_MAX: Final = 10**12
"""In milliseconds 31 years; beyond it the clock would no longer distinguish one from the next."""

NEAR_MISS: Final = 0.8
ONE_DEVICE: Final = "device"

EVENTS: Final[dict[str, tuple[str, ...]]] = {
    "uplink": (
        *("gateway", "f_cnt", "wire_f_cnt", "confirmed", "station", "device", "mic"),
        "upstream_fails",
    ),
    "join_request": ("gateway", "dev_nonce", "station", "device", "mic", "mic_ok"),
    "gateway_down": ("gateway",),
    "gateway_up": ("gateway",),
    "notify_unreachable": ("gateway",),
    "notify_reachable": ("gateway",),
    "coordinator_down": (),
    "coordinator_up": (),
    "coordinator_lock_busy": ("duration_ms", "device"),
    "coordinator_state_expires": ("device",),
    "idle_timeout": ("gateway", "device"),
    "cache_refresh": ("gateway", "device"),
    "close_request": ("gateway", "device", "payload"),
    "class_c_downlink": ("gateway", "device"),
}
"""Members of each type of event, in addition to `t_ms`, `type` and `note`."""

_SCENARIO: Final = (
    *("id", "title", "source", "config", "gateways", "initial", "events", "expected", "note"),
    *("rule", "why", "format"),
)
_CONFIG: Final = (
    *("delay_ms", "dedup", "keepalive_s", "activation", "device_class", "pinned_to"),
    *("relaxed_counters", "coordinator_ms", "upstream_ms", "note"),
)
_INITIAL: Final = (
    *("coordinator", "twin", "gateways", "devices_with_same_address"),
    *("preferred_gateway", "notify_latency_ms", "note"),
)
_GATEWAY: Final = ("ownership", "connection", "cached", "f_cnt_up", "load_ms", "session", "note")
_TWIN: Final = ("f_cnt_up", "session", "dev_nonces", "note")
_RECORD: Final = ("f_cnt", "gateway", "note")


class ScenarioError(EdgeHubError):
    """A scenario cannot be read; the text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a scenario; all times in milliseconds.

    Attributes:
        delay_ms: Wait of a loser.
        deduplication: See `Deduplication`.
        keepalive_s: 0 = an idle connection is never closed.
        activation: See `Activation`.
        pinned_to: The only gateway of the device, None = the elected one.
        relaxed_counters: An ABP device may start again with counter 0 or 1.
        coordinator_ms: How long an answer of the coordinator takes.
        upstream_ms: How long it takes to send a message upstream.
    """

    delay_ms: int = 400
    deduplication: Deduplication = Deduplication.DROP
    keepalive_s: int = 0
    activation: Activation = Activation.OTAA
    pinned_to: str | None = None
    relaxed_counters: bool = True
    coordinator_ms: int = 0
    upstream_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """A gateway's view of a device when the scenario begins."""

    ownership: Ownership = Ownership.UNKNOWN
    is_open: bool = False
    cached: bool = True
    f_cnt_up: int = 0
    load_ms: int = 0
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """What a gateway finds stored of a device."""

    f_cnt_up: int = 0
    session: str = ""
    dev_nonces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordState:
    """What the coordinator knows of a device when the scenario begins."""

    f_cnt: int | None
    gateway: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happens.

    Attributes:
        index: Its place in the list.
        t_ms: When.
        type: One of `EVENTS`.
        gateway: Where, "" = nowhere in particular.
        device: Whose.
        members: What else was written.
    """

    index: int
    t_ms: int
    type: str
    gateway: str
    device: str
    members: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole scenario.

    Attributes:
        id: Its name, None = it has none.
        config: Settings.
        gateways: Names of the gateways.
        devices: Names of the devices.
        same_address: Whether they share one address.
        notify_latency_ms: How long a notice takes.
        records: What the coordinator knows, by device.
        twins: What is stored, by device.
        states: What gateways know, by gateway and device.
        events: In the order of the list.
        ignored: Members that the form does not know.
    """

    id: Any
    config: Config
    gateways: tuple[str, ...]
    devices: tuple[str, ...]
    same_address: bool
    notify_latency_ms: int
    records: dict[str, RecordState]
    twins: dict[str, Twin]
    states: dict[tuple[str, str], GatewayState]
    events: tuple[Event, ...]
    ignored: tuple[str, ...] = field(default=())


def scenarios_of(document: Any) -> list[Any]:
    """Take the scenarios out of a document: one of them, a list, or an object with `scenarios`.

    Raises:
        ScenarioError: It is none of these.
    """
    if isinstance(document, dict) and "scenarios" in document:
        document = document["scenarios"]
        if not isinstance(document, list):
            raise ScenarioError("`scenarios` must be a list of scenarios")
    elif isinstance(document, dict):
        document = [document]
    if not isinstance(document, list) or not document:
        raise ScenarioError("expected a scenario, a list of scenarios, or an object that has them")
    return document


def read_scenario(form: Any, *, delay_ms: int | None = None) -> Scenario:
    """Read a scenario.

    Args:
        form: The JSON value.
        delay_ms: Takes the place of its own delay, None = its own.

    Raises:
        ScenarioError: Something is missing, or of the wrong type, or out of range.
    """
    return _Reader().scenario(form, delay_ms)


class _Reader:
    """Reads one scenario and collects what it does not know."""

    def __init__(self) -> None:
        self._ignored: list[str] = []
        self._gateways: tuple[str, ...] = ()

    def scenario(self, form: Any, delay_ms: int | None) -> Scenario:
        """Return the scenario of a form."""
        form = self._object(form, "the scenario", _SCENARIO)
        self._gateways = self._names(form, "gateways")
        config = self._config(form.get("config", {}), delay_ms)
        initial = self._object(form.get("initial", {}), "`initial`", _INITIAL)
        shared: tuple[str, ...] = ()
        if initial.get("devices_with_same_address") is not None:
            shared = self._names(initial, "devices_with_same_address")
        events = form.get("events")
        if not isinstance(events, list):
            raise ScenarioError("`events` must be a list of events")
        devices = shared or self._named_devices(events)
        return Scenario(
            id=form.get("id"),
            config=config,
            gateways=self._gateways,
            devices=devices,
            same_address=bool(shared),
            notify_latency_ms=self._whole(initial, "notify_latency_ms", "`initial`", 0),
            records=self._records(initial.get("coordinator"), devices),
            twins=self._twins(initial.get("twin"), devices),
            states=self._states(initial.get("gateways", {}), devices),
            events=self._events(events, devices, config, initial.get("preferred_gateway")),
            ignored=tuple(self._ignored),
        )

    def _config(self, form: Any, delay_ms: int | None) -> Config:
        place = "`config`"
        form = self._object(form, place, _CONFIG)
        keepalive_s = self._whole(form, "keepalive_s", place, 0)
        if 0 < keepalive_s < KEEP_ALIVE_S_MIN:
            raise ScenarioError(
                f"`config.keepalive_s` must be 0 (never) or at least {KEEP_ALIVE_S_MIN} seconds"
            )
        delay = self._whole(form, "delay_ms", place, 400, least=-F_CNT_MAX)
        return Config(
            delay_ms=delay if delay_ms is None else delay_ms,
            deduplication=Deduplication(
                self._word(form, "dedup", place, tuple(Deduplication), Deduplication.DROP)
            ),
            keepalive_s=keepalive_s,
            activation=Activation(
                self._word(form, "activation", place, tuple(Activation), Activation.OTAA)
            ),
            pinned_to=self._text(form, "pinned_to", place, None),
            relaxed_counters=self._truth(form, "relaxed_counters", place, default=True),
            coordinator_ms=self._whole(form, "coordinator_ms", place, 0),
            upstream_ms=self._whole(form, "upstream_ms", place, 0),
        )

    def _records(self, form: Any, devices: tuple[str, ...]) -> dict[str, RecordState]:
        if form is None:
            return {}
        forms = self._per_device(form, "`initial.coordinator`", devices)
        records = {}
        for device, value in forms.items():
            if value is None:
                continue
            place = "`initial.coordinator`"
            member = self._object(value, place, _RECORD)
            f_cnt = member.get("f_cnt")
            records[device] = RecordState(
                f_cnt=None if f_cnt is None else self._f_cnt(member, "f_cnt", place),
                # Also one that has left: it is notified, and no hub reads that.
                gateway=self._text(member, "gateway", place, None) or "",
            )
            if not records[device].gateway:
                raise ScenarioError(f"{place} needs `gateway`")
        return records

    def _twins(self, form: Any, devices: tuple[str, ...]) -> dict[str, Twin]:
        place = "`initial.twin`"
        if form is None:
            return {}
        forms = self._per_device(form, place, devices, shared=True)
        twins = {}
        for device, value in forms.items():
            member = self._object(value, place, _TWIN)
            nonces = member.get("dev_nonces", [])
            if not isinstance(nonces, list) or not all(isinstance(n, int) for n in nonces):
                raise ScenarioError("`initial.twin.dev_nonces` must be a list of whole numbers")
            twins[device] = Twin(
                f_cnt_up=self._f_cnt(member, "f_cnt_up", place, 0),
                session=self._text(member, "session", place, "") or "",
                dev_nonces=tuple(nonces),
            )
        return twins

    def _states(self, form: Any, devices: tuple[str, ...]) -> dict[tuple[str, str], GatewayState]:
        place = "`initial.gateways`"
        if not isinstance(form, dict):
            raise ScenarioError(f"{place} must be an object with a member per gateway")
        states = {}
        for gateway, value in form.items():
            if gateway not in self._gateways:
                raise ScenarioError(f"{place}: `{gateway}` is none of `gateways`")
            where = f"`initial.gateways.{gateway}`"
            for device, member in self._per_device(value, where, devices, shared=True).items():
                states[gateway, device] = self._state(member, where)
        return states

    def _state(self, form: Any, place: str) -> GatewayState:
        form = self._object(form, place, _GATEWAY)
        connection = self._word(form, "connection", place, ("open", "closed"), "closed")
        return GatewayState(
            ownership=Ownership(
                self._word(form, "ownership", place, tuple(Ownership), Ownership.UNKNOWN)
            ),
            is_open=connection == "open",
            cached=self._truth(form, "cached", place, default=True),
            f_cnt_up=self._f_cnt(form, "f_cnt_up", place, 0),
            load_ms=self._whole(form, "load_ms", place, 0),
            session=self._text(form, "session", place, None),
        )

    def _events(
        self, forms: Any, devices: tuple[str, ...], config: Config, preferred: Any
    ) -> tuple[Event, ...]:
        events = []
        for index, form in enumerate(forms):
            given = form
            if isinstance(form, dict) and form.get("type") == "class_c_downlink" and preferred:
                given = {"gateway": preferred, **form}
            events.append(self._event(given, index, devices, config))
        if config.keepalive_s == 0:
            # Nothing is ever idle for too long then.
            return tuple(event for event in events if event.type != "idle_timeout")
        return tuple(events)

    def _event(self, form: Any, index: int, devices: tuple[str, ...], config: Config) -> Event:
        place = f"`events[{index}]`"
        if not isinstance(form, dict):
            raise ScenarioError(f"{place} must be an object")
        if "type" not in form:
            self._object(form, place, ("t_ms", "type", "gateway"))
            raise ScenarioError(f"{place} needs `type`")
        type_ = self._word(form, "type", place, tuple(EVENTS), None)
        known = ("t_ms", "type", "note", "upstream_ms", *EVENTS[type_])
        form = self._object(form, place, known)
        members: dict[str, Any] = {
            "station": self._text(form, "station", place, "s1"),
            "mic": self._text(form, "mic", place, ""),
            "mic_ok": self._truth(form, "mic_ok", place, default=True),
            "confirmed": self._truth(form, "confirmed", place, default=False),
            "upstream_fails": self._truth(form, "upstream_fails", place, default=False),
            "upstream_ms": self._whole(form, "upstream_ms", place, config.upstream_ms),
        }
        if type_ == "uplink":
            members["f_cnt"] = self._f_cnt(form, "f_cnt", place)
            if "wire_f_cnt" in form:
                members["wire_f_cnt"] = self._whole(form, "wire_f_cnt", place, None)
        if type_ == "join_request":
            members["dev_nonce"] = self._whole(form, "dev_nonce", place, None)
        if type_ == "close_request" and "payload" in form:
            members["payload"] = form["payload"]
        if type_ == "coordinator_lock_busy":
            members["duration_ms"] = self._whole(form, "duration_ms", place, None)
        return Event(
            index=index,
            t_ms=self._whole(form, "t_ms", place, None),
            type=type_,
            gateway=self._gateway(form, place) if "gateway" in EVENTS[type_] else "",
            device=self._text(form, "device", place, devices[0]) or devices[0],
            members=members,
        )

    def _named_devices(self, events: list[Any]) -> tuple[str, ...]:
        named = (
            event.get("device")
            for event in events
            if isinstance(event, dict) and event.get("type") in ("uplink", "join_request")
        )
        return tuple(dict.fromkeys(str(name) for name in named if name)) or (ONE_DEVICE,)

    def _per_device(
        self, form: Any, place: str, devices: tuple[str, ...], *, shared: bool = False
    ) -> dict[str, Any]:
        """Return a value per device: it may be written once, for the first or for all of them."""
        if not isinstance(form, dict):
            raise ScenarioError(f"{place} must be an object")
        if form and all(key in devices for key in form):
            return form
        return dict.fromkeys(devices if shared else devices[:1], form)

    def _object(self, form: Any, place: str, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(form, dict):
            raise ScenarioError(f"{place} must be an object")
        for key in form:
            if key in known:
                continue
            near = difflib.get_close_matches(key, known, 1, NEAR_MISS)
            if near:
                raise ScenarioError(f"{place} has no member `{key}`; did you mean `{near[0]}`?")
            self._ignored.append(f"{place.strip('`')}: {key}")
        return form

    def _names(self, form: dict[str, Any], key: str) -> tuple[str, ...]:
        names = form.get(key)
        if not isinstance(names, list) or not names:
            raise ScenarioError(f"`{key}` must be a list of names")
        if not all(isinstance(name, str) and name for name in names):
            raise ScenarioError(f"`{key}` must hold names that are not empty")
        if len(set(names)) < len(names):
            raise ScenarioError(f"`{key}` names one of them twice")
        return tuple(names)

    def _gateway(self, form: dict[str, Any], place: str) -> str:
        name = self._text(form, "gateway", place, None)
        if name is None:
            raise ScenarioError(f"{place} needs `gateway`")
        if name not in self._gateways:
            raise ScenarioError(f"{place}: `gateway` is {name!r}, which is none of `gateways`")
        return name

    def _f_cnt(self, form: dict[str, Any], key: str, place: str, default: int | None = None) -> int:
        value = self._whole(form, key, place, default)
        if value > F_CNT_MAX:
            raise ScenarioError(f"{place}: `{key}` must be at most {F_CNT_MAX} (32 bits)")
        return value

    def _whole(
        self, form: dict[str, Any], key: str, place: str, default: int | None, *, least: int = 0
    ) -> int:
        value = form.get(key, default)
        if value is None and key not in form:
            raise ScenarioError(f"{place} needs `{key}`")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            size = " of at least 0" if least == 0 else ""
            raise ScenarioError(f"{place}: `{key}` must be a whole number{size}")
        if value > WHOLE_MAX:
            raise ScenarioError(f"{place}: `{key}` must be at most {WHOLE_MAX}")
        return value

    def _text(self, form: dict[str, Any], key: str, place: str, default: str | None) -> str | None:
        value = form.get(key, default)
        if value is not None and not isinstance(value, str):
            raise ScenarioError(f"{place}: `{key}` must be a text")
        return value

    def _truth(self, form: dict[str, Any], key: str, place: str, *, default: bool) -> bool:
        value = form.get(key, default)
        if not isinstance(value, bool):
            raise ScenarioError(f"{place}: `{key}` must be true or false")
        return value

    def _word(
        self,
        form: dict[str, Any],
        key: str,
        place: str,
        words: tuple[str, ...],
        default: str | None,
    ) -> str:
        value = form.get(key, default)
        if value not in words:
            near = difflib.get_close_matches(str(value), words, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ScenarioError(f"{place}: `{key}` must be one of {', '.join(words)}{hint}")
        return str(value)
