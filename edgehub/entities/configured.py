"""The options of the mapper from the settings.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.entities.options import MapperOptions
from edgehub.entities.topics import ALARM_JOURNAL
from edgehub.settings.derived import has_platform, mapper_topics

if TYPE_CHECKING:
    from edgehub.settings import Settings


def mapper_options(settings: Settings, *, hub_id: str) -> MapperOptions:
    """Return the mapper's options."""
    return MapperOptions(
        device_id=settings.mapper.external_id or hub_id,
        mapper=settings.mapper,
        entities=settings.entities,
        asks_for_operations=not has_platform(settings),
    )


def local_topics(settings: Settings) -> tuple[str, ...]:
    """Return the filters of the local topics that the mapper reads and writes."""
    topics = mapper_topics(settings)
    return (*topics, f"{ALARM_JOURNAL}#") if topics else ()
