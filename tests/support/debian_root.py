"""A small Debian in a folder, and the hub's wheels: what units and image are tried on, as root.

Owns what the machine of a user would have: the Python and systemd of the distribution, the wheel of
this checkout with the versions that were tested together. Slow: for `make soak`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
PYTHON_VERSION = "3.11"
SOURCES = ("edgehub", "analytics", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
EXTRAS = "lora,lora-js,redis,zstd"
"""What the image of the hub has, by deploy/Dockerfile."""
OLDER = "async-timeout==5.0.1"
"""Redis needs it before Python 3.11.3; Debian's is older, the one that runs this may be newer."""

TIMEOUT_S = 900


def make_root(folder: Path, *packages: str) -> Path:
    """Bootstrap a minimal Debian into a folder, with further packages."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", SUITE]
    _run([*command, str(folder)])
    return folder


def make_wheels(folder: Path, *further: str) -> Path:
    """Build the wheel of this checkout and fetch what it needs, for the Python of `make_root`.

    Args:
        folder: Where they go.
        further: Requirements beside those of the hub.
    """
    source = folder / "source"
    for name in SOURCES:
        origin, copy = ROOT / name, source / name
        if origin.is_dir():
            shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(origin, copy)
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)])
    (wheel,) = wheels.glob("edgehub-*.whl")
    fetch = ["download", "--dest", str(wheels), "--constraint", str(ROOT / "constraints.txt")]
    only = ["--python-version", PYTHON_VERSION, "--only-binary", ":all:"]
    _run([*pip, *fetch, *only, f"{wheel}[{EXTRAS}]", OLDER, *further])
    return wheels


def add_packages(wheels: Path, lock: str) -> None:
    """Fetch the packages of a lock as they are published, sources where there is no wheel."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    as_locked = ["--require-hashes", "--no-build-isolation", "--use-pep517"]
    _run([*pip, "--dest", str(wheels), *as_locked, "--requirement", str(ROOT / lock)])


def install_hub(root: Path, wheels: Path) -> None:
    """Make the environment in /opt/edgehub as the guide says."""
    inside = root / "var" / "tmp" / "wheels"
    shutil.copytree(wheels, inside)
    names = [f"/var/tmp/wheels/{wheel.name}" for wheel in inside.glob("*.whl")]
    _run(["chroot", str(root), "python3", "-m", "venv", "/opt/edgehub"])
    pip = ["/opt/edgehub/bin/pip", "install", "--quiet", "--no-index", "--no-deps"]
    _run(["chroot", str(root), *pip, *names])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
