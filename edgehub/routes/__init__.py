"""What goes where: the route language, manifests and the compiled route table."""

from edgehub.routes.manifest import (
    DEFAULT_MANIFEST,
    Manifest,
    RouteSpec,
    load_manifest,
    parse_manifest,
)
from edgehub.routes.table import RouteTable

__all__ = [
    "DEFAULT_MANIFEST",
    "Manifest",
    "RouteSpec",
    "RouteTable",
    "load_manifest",
    "parse_manifest",
]
