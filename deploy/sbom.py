"""Write what a Python environment holds as a CycloneDX document.

Run by the environment's own interpreter: `python sbom.py NAME > sbom.cdx.json`. Needs the standard
library alone, so nothing but the environment itself is in it. Source: CycloneDX 1.5, JSON.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from typing import Any


def document(name: str) -> dict[str, Any]:
    """Describe the installed distributions.

    Args:
        name: Of what is made of them.
    """
    found = {
        component["bom-ref"]: component for component in map(_component, metadata.distributions())
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": name}},
        "components": [found[reference] for reference in sorted(found)],
    }


def _component(distribution: metadata.Distribution) -> dict[str, Any]:
    fields = distribution.metadata
    name, version = fields["Name"], distribution.version
    reference = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
    }
    licence = fields["License-Expression"]
    if licence:
        component["licenses"] = [{"expression": licence}]
    return component


if __name__ == "__main__":
    json.dump(document(sys.argv[1]), sys.stdout, indent=1)
