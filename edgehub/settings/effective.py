"""The settings in force as one document: every value, where it came from, and what follows from it.

Owns nothing; the command line prints it from the files, the daemon gives it for what it runs with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.routes.manifest import DEFAULT_MANIFEST
from edgehub.settings.origin import setting_documents

if TYPE_CHECKING:
    from edgehub.routes.spec import Manifest
    from edgehub.settings.origin import LoadedSettings

DATABASE_NAME: Final = "queue.db"


def effective_document(
    loaded: LoadedSettings, *, manifest: Manifest | None, hub_id: str | None, running: bool
) -> dict[str, Any]:
    """Describe settings and what the hub makes of them.

    Args:
        loaded: Settings with their origins.
        manifest: The routes, None = the manifest has faults.
        hub_id: The hub's name, None = it is made at the first start.
        running: A daemon says so of itself, not a file.

    Returns:
        `settings`: value, origin and place by dotted key; `derived`: paths, and where the time to
        live comes from.
    """
    settings = loaded.settings
    ttl_ms = None if manifest is None else manifest.global_ttl_ms
    derived: dict[str, Any] = {
        "hub_id": hub_id,
        "database": str(settings.data_dir / DATABASE_NAME),
        "control_socket": str(settings.control_path),
        "manifest": None if manifest is None else manifest.file,
        "manifest_is": "built-in" if manifest is DEFAULT_MANIFEST else "file",
        "routes": None if manifest is None else len(manifest.routes),
        "global_ttl_s": None if ttl_ms is None else ttl_ms // 1000,
        "collects_only": settings.upstream is None,
    }
    return {"running": running, "settings": setting_documents(loaded), "derived": derived}
