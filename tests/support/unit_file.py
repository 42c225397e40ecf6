"""Unit files of systemd as sections of keys with all their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Unit = dict[str, dict[str, list[str]]]

_UNITS_S = {"": 1, "s": 1, "min": 60, "h": 3600}


def read_unit(file: Path) -> Unit:
    """Return the values of each key in their order, by section."""
    unit: Unit = {}
    for line in file.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = unit.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return unit


def seconds(span: str) -> int:
    """Return a span of one unit, such as `15min`, in seconds."""
    number = span.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(number) * _UNITS_S[span.removeprefix(number)]
