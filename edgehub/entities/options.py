"""Options of entities and mapper, as plain values.

Owns names, units and defaults; calls nothing. Invariant: it never changes while a mapper runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class CacheScope(StrEnum):
    """The scope of the bound on early telemetry."""

    ENTITY = "entity"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether the cloud monitors the availability of devices.

    Attributes:
        enable: Send the required interval and heartbeats.
        interval_s: Seconds in which the cloud expects a message; 0 = no heartbeats.
    """

    enable: bool = False
    interval_s: int = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class MapperOptions:
    """Options of one mapper.

    Attributes:
        device_id: External id of the main device.
        topic_root: First level of the local topics.
        main_topic_id: Topic id of the main device.
        cloud_prefix: First level of the cloud's topics as clients and the bridge see them.
        auto_register: Register a default-scheme entity by its first message.
        clean_start: Forget entities at the start; retained registrations rebuild them.
        telemetry_cache_size: Early telemetry messages kept per entity, or in all.
        telemetry_cache_scope: See `CacheScope`.
        pending_ttl_ms: Longest wait of what is held for an unregistered entity.
        pending_messages_max: Held messages in all.
        pending_bytes_max: Held bytes in all.
        client_bytes_max: Held bytes of one client.
        entities_max: Registered entities; more are refused.
        state_bytes_max: Registrations and twins kept, in bytes.
        topics: Topic filters that are handled, empty = every topic of the scheme.
        service_type: Cloud type of a service that names none.
        child_device_marker: Last field of a child's create line.
        use_operation_id: Report operations by id, not by name.
        asks_for_operations: Ask the cloud for pending operations at the start and when its bridge
            comes up; a `cumulocity` endpoint asks at each connection by itself.
        packet_bytes_max: Largest PUBLISH packet that the cloud takes.
        alarm_sync_ms: Time after the start in which live alarms are gathered, before they are
            compared with the journal; 0 = no comparison.
        availability: See `Availability`.
        advanced_software_list: Send software lists as SmartREST; false = not at all.
        software_types: Send the list of software types that a device declares.
        disabled_operations: Local names of operations that are neither declared nor taken.
        custom_operations: Fragment at the cloud by local name, of operations of the user's own.
        file_transfer_base: Where devices exchange files with the gateway.
        tenant_host: Host of the cloud tenant; its URLs, also under another first label of the same
            domain, are fetched through `proxy_url`. Empty = none are.
        proxy_url: Local base that stands in for the tenant.
    """

    device_id: str
    topic_root: str = "te"
    main_topic_id: str = "device/main//"
    cloud_prefix: str = "c8y"
    auto_register: bool = False
    clean_start: bool = False
    telemetry_cache_size: int = 100
    telemetry_cache_scope: CacheScope = CacheScope.ENTITY
    pending_ttl_ms: int = 24 * 3600 * 1000
    pending_messages_max: int = 10_000
    pending_bytes_max: int = 16 * 2**20
    client_bytes_max: int = 2**20
    entities_max: int = 10_000
    state_bytes_max: int = 64 * 2**20
    topics: tuple[str, ...] = ()
    service_type: str = "service"
    child_device_marker: bool = False
    use_operation_id: bool = True
    asks_for_operations: bool = True
    packet_bytes_max: int = 16_184
    alarm_sync_ms: int = 3000
    availability: Availability = field(default_factory=Availability)
    advanced_software_list: bool = True
    software_types: bool = False
    disabled_operations: frozenset[str] = frozenset()
    custom_operations: Mapping[str, str] = field(default_factory=dict)
    file_transfer_base: str = "http://127.0.0.1:8000"
    tenant_host: str = ""
    proxy_url: str = "http://127.0.0.1:8001/c8y"
