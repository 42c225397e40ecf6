"""What a running hub says of itself as a whole: the status, and its one-line summary.

Owns nothing. Invariant: the command line, the control socket, the service manager and pages show
the same figures, because they all come from here.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import edgehub
from edgehub import status
from edgehub.config.configuration import named_endpoints
from edgehub.config.loops import loop_warnings
from edgehub.operating.documents import utc_text

if TYPE_CHECKING:
    from edgehub.lifecycle import Phase
    from edgehub.parts import HubParts


class Overview:
    """See the module."""

    __slots__ = ("_parts", "_started_ms")

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts
        self._started_ms = parts.store.hub_time.now_ms()

    def summary(self, phase: Phase) -> str:
        """Say in a few words whether the hub delivers."""
        outlook = self._parts.outlook
        return status.summary(
            phase,
            outlook.endpoint_documents(),
            outlook.queue_documents(),
            upstream=self._parts.egress.has_upstream,
        )

    def document(self, phase: Phase) -> dict[str, Any]:
        """Describe the whole hub; what `edgehub status --json` prints."""
        parts = self._parts
        queues = parts.outlook.queue_documents()
        endpoints = parts.outlook.endpoint_documents()
        manifest = parts.router.table.manifest
        pending = parts.reloader.needs_restart
        settings = parts.reloader.configuration.settings
        store = parts.store.statistics()
        mqtt = parts.listener.statistics()
        http = None if parts.http is None else parts.http.statistics()
        return {
            "hub_id": parts.hub_id,
            "version": edgehub.__version__,
            "phase": phase,
            "started": utc_text(parts.store.utc_ms(self._started_ms)),
            "pid": os.getpid(),
            "summary": status.summary(phase, endpoints, queues, upstream=parts.egress.has_upstream),
            "degraded": bool(status.store_warnings(store)),
            "warnings": [
                *status.store_warnings(store),
                *status.parked_warnings(endpoints),
                *status.dead_letter_warnings(store.dead_letters),
                *status.refused_warnings(endpoints, queues),
                *status.left_out_warnings(endpoints),
                *status.window_warnings(endpoints, store.clock),
                *status.bound_warnings("MQTT", mqtt.bounds),
                *([] if http is None else status.bound_warnings("HTTP", http.bounds)),
                *status.warnings(
                    parts.egress.orphans(),
                    [*map(str, pending), *map(str, manifest.warnings)],
                    parts.reports.stalled,
                ),
                *loop_warnings(
                    settings, named_endpoints(settings), parts.router.table.mqtt_filters
                ),
                *parts.outlook.warnings(),
                *(text for assembly in parts.assemblies for text in assembly.warnings()),
            ],
            "stalled": sorted(parts.reports.stalled),
            "needs_restart": [entry.key for entry in pending],
            "routes": len(manifest.routes),
            "unrouted": parts.router.unrouted_total,
            "mqtt": asdict(mqtt),
            "http": None if http is None else asdict(http),
            "store": asdict(store),
            "written": status.written_document(parts.store.queues()),
            **{assembly.name: assembly.document() for assembly in parts.assemblies},
            "endpoints": endpoints,
            "queues": queues,
        }
