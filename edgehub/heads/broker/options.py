"""Options of the broker head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.endpoints.mqtt_link import LinkOptions

ENVELOPE_BYTES_MAX: Final = 2 * 65_536
"""Topic and properties of a packet, in addition to the body that the settings bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """See the settings' `[broker]`.

    Attributes:
        link: Address and client id of the connection.
        memory_file: Stores the subscriptions of the session at the broker.
        share_group: Group of hubs that share the messages for routes, None = each gets all.
        local_topics: Topic filters that broker and local topic space share.
        devices: Patterns that name the sender by the topic.
        message_bytes_max: Largest message: body and properties.
        backlog_bytes_max: Bytes of unsettled messages.
    """

    link: LinkOptions
    memory_file: Path
    share_group: str | None = None
    local_topics: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    message_bytes_max: int = 262_144
    backlog_bytes_max: int = 16 * 2**20
