"""Lengths of time as arguments: `90s`, `10min`, `1h`, `2d`."""

from __future__ import annotations

import re
from typing import Final

import click

_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_FORM: Final = re.compile(r"(\d{1,9})\s*([a-z]*)")


class Duration(click.ParamType[int]):
    """A length of time; its value is whole seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the seconds of a text."""
        found = _FORM.fullmatch(str(value).strip())
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is no length of time; write 90s, 10min, 1h or 2d", param, ctx)
        return int(found[1]) * _UNITS[found[2]]
