"""The form of a scenario: what one may write, and what it becomes.

Owns names and defaults of the form `edgehub-affinity/1`. Mistakes are reported with their place; a
member that the form does not know is listed and otherwise passed over, unless it looks like a
misspelt one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar

from msgspec import Struct
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.connection import KEEP_ALIVE_S_MIN
from edgehub.devices.source import Activation, Deduplication
from edgehub.errors import EdgeHubError
from edgehub.routes.hints import near_miss
from edgehub.settings.faults import in_words, near_choice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pydantic_core import ErrorDetails

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
"""Members of each type of event, in addition to those of `_OF_ALL`."""
_OF_ALL: Final = ("t_ms", "type", "note", "upstream_ms")
_NEEDED: Final = {"f_cnt", "dev_nonce", "duration_ms", "gateway"}
"""Members that an event has wherever its type knows them."""


class ScenarioError(EdgeHubError):
    """A scenario cannot be read; the text says where and why."""


def _check_twice(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("names one of them twice")
    return names


_Whole = Annotated[int, Field(ge=0, le=WHOLE_MAX)]
_FCnt = Annotated[int, Field(ge=0, le=F_CNT_MAX)]
_Names = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1), AfterValidator(_check_twice)
]
_Word = Field(strict=False)


class _Form(BaseModel):
    """An object of the form.

    Attributes:
        ignored: Members that the form does not know.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    passed_over: ClassVar[tuple[str, ...]] = ("note",)
    ignored: list[str] = []

    @classmethod
    def known(cls, form: dict[str, Any]) -> set[str]:
        """Return the members that a form like this one may have."""
        del form
        return {*cls.model_fields, *cls.passed_over} - {"ignored"}

    @model_validator(mode="before")
    @classmethod
    def _find_unknown(cls, form: Any) -> Any:
        if not isinstance(form, dict):
            return form
        known = cls.known(form)
        ignored = [key for key in form if key not in known]
        for key in ignored:
            if near := near_miss(key, known, cutoff=NEAR_MISS):
                raise ValueError(f"has no member `{key}`; did you mean `{near}`?")
        return {**{key: form[key] for key in form if key in known}, "ignored": ignored}


_Read = TypeVar("_Read", bound=_Form)


class Config(_Form):
    """Settings of a scenario; all times in milliseconds.

    Attributes:
        delay_ms: Wait of a loser.
        dedup: See `Deduplication`.
        keepalive_s: 0 = an idle connection is never closed.
        activation: See `Activation`.
        pinned_to: The only gateway of the device, None = the elected one.
        relaxed_counters: An ABP device may start again with counter 0 or 1.
        coordinator_ms: How long an answer of the coordinator takes.
        upstream_ms: How long it takes to send a message upstream.
    """

    passed_over: ClassVar[tuple[str, ...]] = ("device_class", "note")
    delay_ms: int = Field(default=400, ge=-F_CNT_MAX, le=WHOLE_MAX)
    dedup: Annotated[Deduplication, _Word] = Deduplication.DROP
    keepalive_s: _Whole = 0
    activation: Annotated[Activation, _Word] = Activation.OTAA
    pinned_to: str | None = None
    relaxed_counters: bool = True
    coordinator_ms: _Whole = 0
    upstream_ms: _Whole = 0

    @model_validator(mode="after")
    def _keeps_alive(self) -> Config:
        if 0 < self.keepalive_s < KEEP_ALIVE_S_MIN:
            least = f"nor at least {KEEP_ALIVE_S_MIN} seconds"
            raise ValueError(f"has a `keepalive_s` that is neither 0 (never) {least}")
        return self


class GatewayState(_Form):
    """A gateway's view of a device when the scenario begins."""

    ownership: Annotated[Ownership, _Word] = Ownership.UNKNOWN
    connection: Literal["open", "closed"] = "closed"
    cached: bool = True
    f_cnt_up: _FCnt = 0
    load_ms: _Whole = 0
    session: str | None = None


class Twin(_Form):
    """What a gateway finds stored of a device."""

    f_cnt_up: _FCnt = 0
    session: str = ""
    dev_nonces: list[int] = []


class RecordState(_Form):
    """What the coordinator knows of a device when the scenario begins.

    The gateway may be one that has left: it is notified, and no hub reads that.
    """

    f_cnt: _FCnt | None = None
    gateway: str = Field(min_length=1)


class Event(_Form):
    """One thing that happens.

    Attributes:
        index: Its place in the list.
        t_ms: When.
        type: One of `EVENTS`.
        gateway: Where, "" = nowhere in particular.
        device: Id of the device.
    """

    index: int = 0
    t_ms: _Whole
    type: str
    gateway: str = ""
    device: str = ""
    station: str = "s1"
    mic: str = ""
    mic_ok: bool = True
    confirmed: bool = False
    upstream_fails: bool = False
    upstream_ms: _Whole
    f_cnt: _FCnt = 0
    wire_f_cnt: _Whole | None = None
    dev_nonce: _Whole = 0
    duration_ms: _Whole = 0
    payload: Any = None

    @classmethod
    def known(cls, form: dict[str, Any]) -> set[str]:
        """Return the members that an event of its type may have."""
        if "type" not in form:
            return {"t_ms", "type", "gateway", "upstream_ms"}
        type_ = form["type"]
        if not isinstance(type_, str) or type_ not in EVENTS:
            near = near_miss(str(type_), EVENTS, cutoff=0.6)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"has a `type` that is none of {', '.join(EVENTS)}{hint}")
        members = EVENTS[type_]
        if missing := sorted(_NEEDED.intersection(members) - form.keys()):
            raise ValueError(f"needs `{missing[0]}`")
        return {*_OF_ALL, *members}


class _Initial(_Form):
    coordinator: Any = None
    twin: Any = None
    gateways: dict[str, Any] = {}
    devices_with_same_address: _Names | None = None
    preferred_gateway: str | None = None
    notify_latency_ms: _Whole = 0


class _ScenarioForm(_Form):
    passed_over: ClassVar[tuple[str, ...]] = (
        "title",
        "source",
        "expected",
        "note",
        "rule",
        "why",
        "format",
    )
    id: Any = None
    config: Config = Config()
    gateways: _Names
    initial: _Initial = _Initial()
    events: list[Any]


class Scenario(Struct, frozen=True, kw_only=True):
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
        ignored: Members that the form does not know, with their places.
    """

    id: Any
    config: Config
    gateways: list[str]
    devices: list[str]
    same_address: bool
    notify_latency_ms: int
    records: dict[str, RecordState]
    twins: dict[str, Twin]
    states: dict[tuple[str, str], GatewayState]
    events: list[Event]
    ignored: list[str]


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
    whole = _read(_ScenarioForm, form, "")
    config, initial, gateways = whole.config, whole.initial, whole.gateways
    devices = initial.devices_with_same_address or _named_devices(whole.events)
    found: list[tuple[str, _Form]] = [
        ("the scenario", whole),
        ("config", config),
        ("initial", initial),
    ]

    def read(model: type[_Read], form: Any, place: str) -> _Read:
        found.append((place, read := _read(model, form, place)))
        return read

    place = "initial.coordinator"
    records = {
        device: read(RecordState, member, place)
        for device, member in _per_device(initial.coordinator, place, devices[:1], devices)
        if member is not None
    }
    place = "initial.twin"
    twins = {
        device: read(Twin, member, place)
        for device, member in _per_device(initial.twin, place, devices, devices)
    }
    states = {}
    for gateway, member in initial.gateways.items():
        _check_gateway(gateway, gateways, "initial.gateways")
        place = f"initial.gateways.{gateway}"
        for device, state in _per_device(member, place, devices, devices):
            states[gateway, device] = read(GatewayState, state, place)
    events = []
    for index, event_form in enumerate(whole.events):
        place, given = f"events[{index}]", event_form
        if isinstance(given, dict):
            preferred = given.get("type") == "class_c_downlink" and initial.preferred_gateway
            where = {"gateway": preferred} if preferred else {}
            given = {"upstream_ms": config.upstream_ms, **where, **given}
        event = read(Event, given, place)
        if "gateway" in EVENTS[event.type]:
            _check_gateway(event.gateway, gateways, place)
        # Nothing is ever idle for too long without a keep-alive.
        if config.keepalive_s or event.type != "idle_timeout":
            whose = event.device or devices[0]
            events.append(event.model_copy(update={"index": index, "device": whose}))
    return Scenario(
        id=whole.id,
        config=config if delay_ms is None else config.model_copy(update={"delay_ms": delay_ms}),
        gateways=gateways,
        devices=devices,
        same_address=initial.devices_with_same_address is not None,
        notify_latency_ms=initial.notify_latency_ms,
        records=records,
        twins=twins,
        states=states,
        events=events,
        ignored=[f"{place}: {key}" for place, form in found for key in form.ignored],
    )


def _named_devices(events: list[Any]) -> list[str]:
    named = (
        event.get("device")
        for event in events
        if isinstance(event, dict) and event.get("type") in ("uplink", "join_request")
    )
    return list(dict.fromkeys(str(name) for name in named if name)) or [ONE_DEVICE]


def _per_device(
    form: Any, place: str, written_once: Iterable[str], devices: Collection[str]
) -> Iterable[tuple[str, Any]]:
    """Return a value per device: it may be written once, for those of `written_once`."""
    if form is None:
        return ()
    if not isinstance(form, dict):
        raise ScenarioError(f"`{place}` must be an object")
    if form and all(key in devices for key in form):
        return form.items()
    return ((device, form) for device in written_once)


def _check_gateway(name: str, gateways: Collection[str], place: str) -> None:
    if name not in gateways:
        raise ScenarioError(f"`{place}`: gateway `{name}` is none of `gateways`")


def _read(model: type[_Read], form: Any, place: str) -> _Read:
    try:
        return model.model_validate(form)
    except ValidationError as error:
        raise ScenarioError(_fault(error.errors(include_url=False)[0], place)) from None


def _fault(detail: ErrorDetails, place: str) -> str:
    kind = detail["type"]
    *parents, last = [place, *detail["loc"]]
    for part in parents[1:]:
        place = _below(place, part)
    if kind == "missing":
        return f"{f'`{place}`' if place else 'the scenario'} needs `{last}`"
    if detail["loc"]:
        place = _below(place, last)
    place = f"`{place}`" if place else "the scenario"
    if kind == "value_error":
        return f"{place} {detail['ctx']['error']}"
    hint = near_choice(detail)
    return f"{place} {in_words(detail)}{f'; {hint}' if hint else ''}"


def _below(place: str, part: int | str) -> str:
    if isinstance(part, int):
        return f"{place}[{part}]"
    return f"{place}.{part}" if place else part
