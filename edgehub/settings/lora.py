"""`[lora]`: LoRaWAN stations that connect to the hub.

Owns that section of the model; calls nothing of the hub.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from edgehub.lora.identifiers import eui_text, parse_station_id
from edgehub.settings.tls import ServerCertificateFile, ServerKeyFile  # noqa: TC001 - pydantic reads it
from edgehub.settings.values import Host, OptionalFile, OptionalPath, Real, Section, Whole

RegionName = Literal["EU868", "US915", "AU915", "AS923-1", "AS923-2", "AS923-3", "AS923-4", "KR920"]
NET_ID_MAX: Final = 2**24 - 1
_UNKNOWN_TO_STATIONS: Final = ("IN865", "RU864", "EU433", "CN470", "CN779")
"""Other plans of LoRaWAN."""


def _known_to_stations(name: object) -> object:
    if name in _UNKNOWN_TO_STATIONS:
        names = ", ".join(get_args(RegionName))
        raise ValueError(
            f"Basics Station has no region {name}, and refuses to send in one that it does not "
            f"know; want one of {names}"
        )
    return name


def _station(text: str) -> str:
    return eui_text(parse_station_id(text))


StationId = Annotated[str, AfterValidator(_station)]


class LoraSettings(Section):
    """`[lora]`: LoRaWAN stations (Basics Station) and how their devices are answered."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Whole | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Absent = no stations; 0 = any free port.",
        examples=[8887],
    )
    certificate_file: ServerCertificateFile = None
    key_file: ServerKeyFile = None
    client_ca_file: OptionalFile = Field(
        default=None,
        description="Authorities of client certificates that stations must show; the common "
        "name of a certificate is the station's id.",
        examples=["/etc/edgehub/stations-ca.pem"],
        json_schema_extra={"x-needs": "certificate_file"},
    )
    region: Annotated[RegionName, BeforeValidator(_known_to_stations)] = Field(
        default="EU868", description="Regional plan of the stations."
    )
    sub_band: Whole = Field(
        default=2,
        ge=1,
        le=8,
        description="Sub-band of eight channels that the stations use in US915 or AU915.",
    )
    net_id: Whole = Field(
        default=0,
        ge=0,
        le=NET_ID_MAX,
        description="NetID of addresses that devices get; 0 and 1 are for private networks.",
    )
    rx_delay_s: Whole = Field(
        default=1,
        ge=1,
        le=15,
        description="Seconds from a frame to the first window of its answer, for devices that join "
        "from now on.",
    )
    adr: bool = Field(
        default=True, description="Choose data rate and power of devices that ask for it (ADR)."
    )
    adr_margin_db: Real = Field(
        default=10,
        ge=0,
        le=30,
        description="Signal-to-noise ratio in dB that is kept in reserve above what a data rate "
        "needs.",
    )
    join_resend: bool = Field(
        default=False,
        description="Answer a repeated join request with the same accept until the device has sent "
        "data; otherwise its nonce is refused as used.",
    )
    stations: tuple[StationId, ...] = Field(
        default=(),
        description="Ids of the stations that may connect; no others may.",
        examples=[["B827EBFFFE123456"]],
    )
    listen_only: tuple[StationId, ...] = Field(
        default=(),
        description="Stations, of those in `stations`, that send nothing; devices are answered "
        "through others.",
        examples=[["B827EBFFFE654321"]],
    )
    no_joins: tuple[StationId, ...] = Field(
        default=(),
        description="Stations, of those in `stations`, whose join requests are ignored; devices "
        "join through others.",
        examples=[["B827EBFFFE654321"]],
    )
    devices_file: OptionalFile = Field(
        default=None,
        description="File of devices with their keys, as `edgehub lora device import` takes it: "
        "they are registered at the start and at a reload.",
        examples=["credential:lora-devices"],
    )
    token_file: OptionalFile = Field(
        default=None,
        description="File with the value of the header `Authorization` that stations must send.",
        examples=["credential:station-token"],
    )
    decoder_folder: OptionalPath = Field(
        default=None,
        description="Folder of scripts that decode payloads, NAME.js for the decoder NAME.",
        examples=["/etc/edgehub/decoders"],
    )

    @model_validator(mode="after")
    def _fits_together(self) -> LoraSettings:
        for name in ("listen_only", "no_joins"):
            if unknown := sorted(set(getattr(self, name)) - set(self.stations)):
                raise ValueError(f"{name}: {unknown[0]} is not among stations")
        return self
