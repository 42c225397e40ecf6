"""What follows from several sections of the settings together.

Pure. Invariant: hubs whose settings name no Cumulocity endpoint run no mapper, unless enabled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edgehub.settings.broker import BrokerSettings
    from edgehub.settings.model import Settings

CUMULOCITY: Final = "cumulocity"


def mapper_runs(settings: Settings) -> bool:
    """Return whether the hub runs the mapper."""
    enabled = settings.mapper.enabled
    return has_platform(settings) if enabled is None else enabled


def has_platform(settings: Settings) -> bool:
    """Return whether an endpoint connects to Cumulocity."""
    named = [*settings.endpoints.values(), settings.upstream]
    return any(getattr(endpoint, "type", None) == CUMULOCITY for endpoint in named)


def mapper_topics(settings: Settings) -> tuple[str, ...]:
    """Return the filters of the local topics on which clients talk to the mapper."""
    if not mapper_runs(settings):
        return ()
    return f"{settings.mapper.topic_root}/#", f"{settings.mapper.topic_prefix}/#"


def broker_topics(settings: Settings, broker: BrokerSettings) -> tuple[str, ...]:
    """Return the filters of the local topics that broker and local topic space share."""
    if broker.local_topics is not None:
        return broker.local_topics
    if broker.version == "5" and mapper_runs(settings):
        return (f"{settings.mapper.topic_root}/#",)
    return ()
