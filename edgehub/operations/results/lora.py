"""LoRaWAN, as operations return them."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class LorawanDeviceDocument(TypedDict):
    """A LoRaWAN device.

    Attributes:
        activation: `otaa` = it joins, `abp` = it has one session for good.
        join_eui: Of its joins, null = any.
        decoder: What decodes its payloads, null = they stay as they are.
        dev_addr: Address of its session, null = it has none yet.
        joins: How often it has joined.
        f_cnt_up: Last frame counter that was heard.
        f_cnt_down: Downlink counters below this one may have been used.
        keys: Its keys, where they were asked for.
    """

    dev_eui: str
    name: str
    mac_version: str
    device_class: str
    activation: str
    join_eui: str | None
    decoder: str | None
    dev_addr: str | None
    joins: int
    f_cnt_up: int
    f_cnt_down: int
    keys: NotRequired[dict[str, str]]


class LorawanDevicesDocument(TypedDict):
    """A page of LoRaWAN devices.

    Attributes:
        next: `after` of the next page, null = this is the last.
    """

    devices: list[LorawanDeviceDocument]
    next: str | None


class RemovedLorawanDevice(TypedDict):
    """Whether the device was registered."""

    dev_eui: str
    removed: bool


class ForgottenNonces(TypedDict):
    """How many DevNonces were forgotten."""

    dev_eui: str
    forgotten: int


class ImportedLorawanDevices(TypedDict):
    """What became of a list of devices.

    Attributes:
        added: Devices that were not registered.
        changed: Registered ones that were replaced.
        skipped: Registered ones that stayed.
    """

    added: int
    changed: int
    skipped: int


class LorawanStationDocument(TypedDict):
    """A LoRaWAN station.

    Attributes:
        for_s: Seconds since it connected, or since the connection ended.
        address: Host and port of the peer, null = not connected.
        version: Of its program, as it says; null = it has not connected since the start.
        model: Likewise.
        connects: Times it has connected since the start.
        frames: Frames of devices that it has sent.
        refused: Messages of it that were none.
        loops: Copies left alone, because it repeated the same bytes without end.
        downlinks: Answers that were handed to it.
        transmits: Answers may be handed to it.
        takes_joins: Its join requests are taken.
    """

    station: str
    connected: bool
    for_s: float
    address: str | None
    version: str | None
    model: str | None
    connects: int
    frames: int
    refused: int
    loops: int
    downlinks: int
    transmits: bool
    takes_joins: bool


class LorawanAnswers(TypedDict):
    """What a LoRaWAN device was asked by MAC commands.

    Attributes:
        waiting: Commands that it has not answered yet.
        answers: Its last answers in this session, by their names, with their members.
    """

    dev_eui: str
    waiting: list[str]
    answers: dict[str, dict[str, int]]


class LorawanStationsDocument(TypedDict):
    """The LoRaWAN stations that may connect."""

    stations: list[LorawanStationDocument]
