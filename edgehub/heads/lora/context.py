"""What the connections of stations share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.heads.lora.network_server import NetworkServer
    from edgehub.heads.lora.stations import StationLink, Stations
    from edgehub.lora.regions import Region
    from edgehub.telemetry.log_limit import LogLimit


class StationContext(Struct, kw_only=True):
    """What the connections of stations share.

    Attributes:
        stations: Those that may connect.
        server: Takes frames.
        region: Of the stations.
        clock: For all timers.
        log: Lines at a bounded rate.
        is_encrypted: Whether they speak TLS.
        has_client_certificates: Whether each shows a certificate with its id.
        connections_max: How many connections there may be, those that have not signed in included.
        token: What they have to send as `Authorization`, None = nothing.
        draining: No message is taken any more.
        connections: All of them, the oldest first.
    """

    stations: Stations
    server: NetworkServer
    region: Region
    clock: Clock
    log: LogLimit
    is_encrypted: bool
    has_client_certificates: bool
    connections_max: int
    token: bytes | None = None
    draining: bool = False
    connections: dict[StationLink, None] = field(default_factory=dict)
