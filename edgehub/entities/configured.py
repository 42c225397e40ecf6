"""The options of the mapper from the settings.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.entities.alarms import JOURNAL
from edgehub.entities.options import Availability, CacheScope, MapperOptions
from edgehub.settings.derived import has_platform, mapper_topics

if TYPE_CHECKING:
    from edgehub.settings import Settings

_MS_PER_S: Final = 1000


def mapper_options(settings: Settings, *, hub_id: str) -> MapperOptions:
    """Return the mapper's options."""
    entities, mapper = settings.entities, settings.mapper
    return MapperOptions(
        device_id=mapper.external_id or hub_id,
        topic_root=mapper.topic_root,
        main_topic_id=mapper.device_topic_id,
        cloud_prefix=mapper.topic_prefix,
        auto_register=entities.auto_register,
        clean_start=entities.clean_start,
        telemetry_cache_size=entities.telemetry_cache_size,
        telemetry_cache_scope=CacheScope(entities.telemetry_cache_scope),
        pending_ttl_ms=entities.pending_ttl_s * _MS_PER_S,
        pending_messages_max=entities.pending_max,
        pending_bytes_max=entities.pending_bytes_max,
        client_bytes_max=entities.pending_client_bytes_max,
        entities_max=entities.entities_max,
        state_bytes_max=entities.state_bytes_max,
        topics=mapper.topics,
        service_type=mapper.service_type,
        child_device_marker=mapper.child_device_marker,
        use_operation_id=mapper.use_operation_id,
        asks_for_operations=not has_platform(settings),
        packet_bytes_max=mapper.packet_bytes_max,
        alarm_sync_ms=mapper.alarm_sync_ms,
        availability=Availability(
            enable=mapper.availability, interval_s=mapper.availability_interval_s
        ),
        advanced_software_list=mapper.software_lists,
        software_types=mapper.software_types,
        disabled_operations=frozenset(mapper.disabled_operations),
        custom_operations=dict(mapper.custom_operations),
        file_transfer_base=mapper.file_transfer_url,
        tenant_host=mapper.tenant_host or "",
        proxy_url=mapper.proxy_url,
    )


def local_topics(settings: Settings) -> tuple[str, ...]:
    """Return the filters of the local topics that the mapper reads and writes."""
    topics = mapper_topics(settings)
    return (*topics, f"{JOURNAL}#") if topics else ()
