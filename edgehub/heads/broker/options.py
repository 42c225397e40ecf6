"""What can be set of the broker head, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.endpoints.mqtt_link import LinkOptions

ENVELOPE_BYTES_MAX: Final = 2 * 65_536
"""Topic and properties of a packet beside the body that the settings bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """See the settings' `[broker]`.

    Attributes:
        link: Whom to connect to, and as whom.
        memory_file: Remembers what the session at the broker is subscribed to.
        share_group: Hubs of which each message for routes reaches one, None = it reaches each.
        local_topics: Topic filters that broker and local topic space share.
        devices: Patterns that name the sender by the topic.
        message_bytes_max: Largest message: body and properties.
        backlog_bytes_max: Bytes of messages that are taken and not settled.
    """

    link: LinkOptions
    memory_file: Path
    share_group: str | None = None
    local_topics: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    message_bytes_max: int = 262_144
    backlog_bytes_max: int = 16 * 2**20
