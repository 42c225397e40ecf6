"""Why a connection is closed: the reason for an error, and its log line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.mqtt.statistics import CloseReason
from edgehub.mqtt.reasons import OversizedPublishError, ReasonCode, reason_of

if TYPE_CHECKING:
    from edgehub.errors import ProtocolError
    from edgehub.heads.mqtt.ingress import Ingress
    from edgehub.telemetry.log_limit import LogLimit

_NORMAL: Final = {CloseReason.DISCONNECT, CloseReason.LOST, CloseReason.HUB_CLOSED}


def close_reason(error: ProtocolError, ingress: Ingress) -> tuple[CloseReason, str, ReasonCode]:
    """Return reason, detail and reason code of a connection that a protocol error ends.

    A message that is too large to be read is counted as dropped.
    """
    if isinstance(error, OversizedPublishError):
        ingress.refuse_unread(error.packet_bytes)
    code = reason_of(error)
    large = code is ReasonCode.PACKET_TOO_LARGE
    reason = CloseReason.PACKET_TOO_LARGE if large else CloseReason.PROTOCOL_ERROR
    return reason, error.reason, code


def log_close(
    log: LogLimit, reason: CloseReason, detail: str, address: str, ingress: Ingress | None
) -> None:
    """Log the end of a connection; `ingress` is None if its client never signed in."""
    fields: dict[str, object] = {"reason": reason.value, "address": address}
    if detail:
        fields["detail"] = detail
    if ingress is not None:
        fields["client_id"] = ingress.client.id
        if ingress.dropped:
            fields["dropped"] = {why.value: n for why, n in ingress.dropped.items()}
    if reason not in _NORMAL:
        log.warning("mqtt.client_closed", **fields)
    elif ingress is not None:
        log.info("mqtt.client_left", **fields)
