"""Routes whose source nothing feeds, given the other settings.

Pure; a warning never keeps a hub from starting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.errors import ManifestFault
from edgehub.local_message import ALWAYS_LOCAL, HUB_TOPICS
from edgehub.mqtt.topic_filter import overlaps
from edgehub.routes.source import MqttSource
from edgehub.settings.derived import mapper_topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.routes.spec import Manifest
    from edgehub.settings import Settings


def source_warnings(settings: Settings, manifest: Manifest) -> Iterator[ManifestFault]:
    """List the routes that take topics of neither the local topic space nor a broker."""
    if settings.broker is not None:
        # The hub subscribes there to what its routes take.
        return
    local = (
        *ALWAYS_LOCAL,
        f"{HUB_TOPICS}#",
        *settings.mqtt.local_topics,
        *mapper_topics(settings),
    )
    for spec in manifest.routes:
        source = spec.route.source
        if isinstance(source, MqttSource) and not any(
            overlaps(source.filter, each) for each in local
        ):
            yield ManifestFault(
                path=spec.path,
                route=spec.name,
                message=f"nothing can publish on `{source.filter}`, so the route takes no message",
                hint="add the topics to mqtt.local_topics, or name a [broker] that has them",
            )
