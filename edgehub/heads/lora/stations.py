"""The stations of a hub: which may connect, which are connected, and what they have sent.

Owns the connected ones. Invariant: of a station that connects again the newest connection counts,
and the end of an older one does not remove it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from edgehub.lora.identifiers import eui_text

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from edgehub.clock import Clock


class StationLink(Protocol):
    """The connection of a station."""

    address: str

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False = the station cannot take it now."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read on."""

    def close(self) -> None:
        """Close it."""


class Station(Struct, eq=False):
    """One station that may connect.

    Attributes:
        station_id: Its id.
        link: Its connection, None = it has none.
        since_s: Since when it is as it is, monotonic seconds.
        about: What it says of itself: version, model, features.
        frames: Frames of devices that it has sent.
        refused: Messages of it that were none.
        loops: Copies left alone because it repeated the same bytes without end.
        downlinks: Answers that were handed to it.
        transmits: Answers may be handed to it.
        takes_joins: Its join requests are taken.
        connects: Times it has connected.
    """

    station_id: int
    since_s: float
    link: StationLink | None = None
    about: dict[str, str] = field(default_factory=dict)
    frames: int = 0
    refused: int = 0
    loops: int = 0
    downlinks: int = 0
    connects: int = 0
    transmits: bool = True
    takes_joins: bool = True


class Stations:
    """The stations of a hub.

    Args:
        allowed: Ids of those that may connect.
        clock: For times.
        listen_only: Those of them that send nothing.
        no_joins: Those of them whose join requests are not taken.
    """

    def __init__(
        self,
        allowed: Iterable[int],
        clock: Clock,
        *,
        listen_only: Container[int] = (),
        no_joins: Container[int] = (),
    ) -> None:
        self._clock = clock
        now = clock.monotonic()
        self._stations = {
            each: Station(
                each, now, transmits=each not in listen_only, takes_joins=each not in no_joins
            )
            for each in allowed
        }

    def get(self, station_id: int) -> Station | None:
        """Return a station, None = it may not connect."""
        return self._stations.get(station_id)

    def may_transmit(self, station_id: int) -> bool:
        """Return whether answers may be handed to a station."""
        station = self._stations.get(station_id)
        return station is not None and station.transmits

    def all(self) -> list[Station]:
        """Return every station that may connect, by its id."""
        return sorted(self._stations.values(), key=lambda station: station.station_id)

    @property
    def connected(self) -> int:
        """Return how many are connected."""
        return sum(station.link is not None for station in self._stations.values())

    def attach(self, station: Station, link: StationLink) -> None:
        """Take in a new connection; an older one is closed."""
        older, station.link = station.link, link
        station.since_s = self._clock.monotonic()
        station.connects += 1
        if older is not None:
            older.close()

    def detach(self, station: Station, link: StationLink) -> bool:
        """Forget a connection that ended; False = there is a newer one, which stays."""
        if station.link is not link:
            return False
        station.link = None
        station.since_s = self._clock.monotonic()
        return True

    def send(self, station_id: int, message: Mapping[str, Any]) -> bool:
        """Send a message; False = the station may not or cannot take it, or is not connected."""
        station = self._stations.get(station_id)
        if station is None or not station.transmits or station.link is None:
            return False
        if not station.link.send(message):
            return False
        station.downlinks += 1
        return True

    def document(self, station: Station) -> dict[str, Any]:
        """Describe a station."""
        return {
            "station": eui_text(station.station_id),
            "connected": station.link is not None,
            "for_s": round(self._clock.monotonic() - station.since_s, 1),
            "address": None if station.link is None else station.link.address,
            "version": station.about.get("station"),
            "model": station.about.get("model"),
            "connects": station.connects,
            "frames": station.frames,
            "refused": station.refused,
            "loops": station.loops,
            "downlinks": station.downlinks,
            "transmits": station.transmits,
            "takes_joins": station.takes_joins,
        }
