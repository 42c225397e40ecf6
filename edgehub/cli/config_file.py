"""Where the settings file is looked for when no option names one."""

from __future__ import annotations

import os
from pathlib import Path


def default_config() -> Path | None:
    """Return edgehub.toml of systemd's folder or else of this one; None = there is none."""
    # systemd names the folder of a unit with ConfigurationDirectory=.
    folder = os.environ.get("CONFIGURATION_DIRECTORY", "").partition(":")[0]
    path = Path(folder) / "edgehub.toml"
    return path if path.exists() else None
