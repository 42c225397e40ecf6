"""How the end of a connection is told: which reason an error is, and what the log says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.mqtt.reasons import OversizedPublishError, ReasonCode, reason_of

if TYPE_CHECKING:
    from edgehub.errors import ProtocolError
    from edgehub.heads.mqtt.ingress import Ingress
    from edgehub.telemetry.log_limit import LogLimit

_NORMAL_ENDS: Final = {CloseReason.DISCONNECT, CloseReason.LOST, CloseReason.HUB_CLOSED}


def ending(error: ProtocolError, ingress: Ingress) -> tuple[CloseReason, str, ReasonCode]:
    """Return reason, detail and reason code of a connection that an error ends.

    A message that is the error is accounted for.
    """
    if isinstance(error, OversizedPublishError):
        ingress.refuse_unread(error.packet_bytes)
    code = reason_of(error)
    large = code is ReasonCode.PACKET_TOO_LARGE
    reason = CloseReason.PACKET_TOO_LARGE if large else CloseReason.PROTOCOL_ERROR
    return reason, error.reason, code


def log_end(
    log: LogLimit, reason: CloseReason, detail: str, address: str, ingress: Ingress | None
) -> None:
    """Write the line of a connection that ended; `ingress` None = it was never signed in."""
    fields: dict[str, object] = {"reason": reason.value, "address": address}
    if detail:
        fields["detail"] = detail
    if ingress is not None:
        fields["client_id"] = ingress.client.id
        if ingress.dropped:
            fields["dropped"] = {why.value: n for why, n in ingress.dropped.items()}
    if reason not in _NORMAL_ENDS:
        log.warning("mqtt.client_closed", **fields)
    elif ingress is not None:
        log.info("mqtt.client_left", **fields)
