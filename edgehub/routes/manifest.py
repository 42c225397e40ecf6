"""Deployment manifests: JSON into routes with priority and time to live.

Owns the schema, 1.0 to 1.3. A manifest is taken whole or not at all: `parse_manifest` returns one
in which every route is parsed and checked, or raises with all faults at once. The route table
checks whether named endpoints exist, as that depends on the settings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import ManifestError
from edgehub.routes.document import Members, read_document, read_file
from edgehub.routes.members import ManifestReader
from edgehub.routes.named import unknown_endpoints
from edgehub.routes.route_entry import read_route
from edgehub.routes.spec import Manifest, RouteSpec

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from edgehub.message import EndpointId

_INT32: Final = (-(2**31), 2**31 - 1)
_VERSION: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){1,3}")
_MAJOR: Final = 1
_MINOR_MAX: Final = 3

_DESIRED: Final = (
    "schemaVersion",
    "routes",
    "storeAndForwardConfiguration",
    "mqttBroker",
    "integrity",
)
_IGNORED: Final = {
    "mqttBroker": "the broker of the original hub is not part of this one",
    "integrity": "signatures of manifests are not checked",
}
_TWIN_EXTRAS: Final = ("$version", "$metadata")
_STORE: Final = "storeAndForwardConfiguration"
_STORE_HINT: Final = 'add "storeAndForwardConfiguration": {"timeToLiveSecs": 7200}'


def load_manifest(file: Path, *, endpoints: Collection[EndpointId] | None = None) -> Manifest:
    """Read a manifest from its file; blocks on the disk.

    Args:
        file: The file.
        endpoints: See `parse_manifest`.

    Raises:
        ManifestError: With all faults, those of the file itself included.
    """
    return parse_manifest(read_file(file), file=str(file), endpoints=endpoints)


def parse_manifest(
    document: object, *, file: str, endpoints: Collection[EndpointId] | None = None
) -> Manifest:
    """Read a manifest.

    Args:
        document: JSON text, or what a JSON reader made of it: the desired properties of the hub,
            bare or inside `$edgeHub` or a whole deployment. Only text shows names that occur twice.
        file: Where it came from, for messages.
        endpoints: Named endpoints that exist, to report missing ones in a manifest with other
            faults; None = not known. One without faults is checked when it is compiled.

    Returns:
        A manifest without faults.

    Raises:
        ManifestError: With all faults.
    """
    read = ManifestReader()
    desired = read.object(read_document(document, file), "")
    if desired is None:
        raise ManifestError(file, read.faults)
    known = {name: value for name, value in desired.items() if name not in _TWIN_EXTRAS}
    read.refuse_unknown(known, _DESIRED, "")
    read.refuse_repeated(desired, "", except_for=_TWIN_EXTRAS)
    for name, why in _IGNORED.items():
        if name in known:
            read.warn(name, f"ignored: {why}")
    version, minor = _schema_version(read, known)
    global_ttl_ms = _global_ttl_ms(read, known)
    routes = _routes(read, known, minor)
    if read.faults:
        unknown = [] if endpoints is None else unknown_endpoints(routes, endpoints)
        raise ManifestError(file, [*read.faults, *unknown])
    return Manifest(
        file=file,
        schema_version=version,
        routes=tuple(routes),
        global_ttl_ms=global_ttl_ms,
        warnings=tuple(read.warnings),
    )


def _schema_version(read: ManifestReader, desired: dict[str, Any]) -> tuple[str, int]:
    """Return the version as written and its minor number."""
    example = 'write "schemaVersion": "1.1"'
    if "schemaVersion" not in desired:
        read.fault("schemaVersion", "is missing", example)
        return "", _MINOR_MAX
    version = desired["schemaVersion"]
    if not isinstance(version, str) or _VERSION.fullmatch(version.strip()) is None:
        read.fault("schemaVersion", f"{read.shown(version)} is no version", example)
        return "", _MINOR_MAX
    major, minor = map(int, version.strip().split(".")[:2])
    if major != _MAJOR or minor > _MINOR_MAX:
        read.fault("schemaVersion", f'"{version}" is not supported', "1.0 to 1.3 are")
    return version.strip(), minor


def _global_ttl_ms(read: ManifestReader, desired: dict[str, Any]) -> int | None:
    if _STORE not in desired:
        read.fault(_STORE, "is missing", _STORE_HINT)
        return None
    store = read.object(desired[_STORE], _STORE)
    if store is None:
        return None
    read.refuse_unknown(store, ("timeToLiveSecs", "storeLimits"), _STORE)
    read.refuse_repeated(store, _STORE)
    if "storeLimits" in store:
        read.warn(f"{_STORE}.storeLimits", "ignored: limits of the store are set in the settings")
    path = f"{_STORE}.timeToLiveSecs"
    if "timeToLiveSecs" not in store:
        read.fault(path, "is missing", "write the seconds, -1 = messages never expire")
        return None
    seconds = read.integer(store["timeToLiveSecs"], path, *_INT32)
    if seconds == 0:
        read.fault(path, "0 would expire all at once", "write -1 for messages that never expire")
    return None if seconds is None or seconds < 0 else seconds * 1000


def _routes(read: ManifestReader, desired: dict[str, Any], minor: int) -> list[RouteSpec]:
    if "routes" not in desired:
        if minor > 0:
            read.fault("routes", "is missing", 'write "routes": {} for none')
        return []
    entries = read.object(desired["routes"], "routes")
    if entries is None:
        return []
    if isinstance(entries, Members):
        entries = _resolve_repeated(read, entries)
    specs = (read_route(read, name, entry, minor=minor) for name, entry in entries.items())
    return [spec for spec in specs if spec is not None]


def _resolve_repeated(read: ManifestReader, entries: Members) -> dict[str, Any]:
    """Choose between entries of one name: the new form wins, else the last one."""
    settled = dict(entries)
    for name, earlier in entries.earlier:
        path = f"routes.{name}"
        if isinstance(earlier, dict) and not isinstance(settled[name], dict):
            settled[name] = earlier
            read.warn(path, "is given twice; the object form is used, the string form is not")
        elif isinstance(earlier, dict) == isinstance(settled[name], dict):
            read.warn(path, "is given twice; the last one is used")
        else:
            read.warn(path, "is given twice; the object form is used, the string form is not")
    return settled


DEFAULT_MANIFEST: Final = parse_manifest(
    {
        "schemaVersion": "1.1",
        "routes": {"upstream": "FROM /messages/* INTO $upstream"},
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    },
    file="built-in manifest",
)
"""In force without a manifest: everything is sent upstream within two hours."""
