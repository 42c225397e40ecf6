"""Paths into the JSON body: `axes[2].rms` into steps.

Owns the grammar of paths: names joined by dots, each with indexes in brackets. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from edgehub.routes.hints import PartFault

Step = str | int

_STEP: Final = re.compile(r"(?P<name>[^.\[\]]*)(?P<indexes>(?:\[[^\].]*\])*)")
_INDEX: Final = re.compile(r"\[([^\]]*)\]")
_INDEX_MAX: Final = 2**31 - 1


def parse_body_path(path: str) -> tuple[Step, ...]:
    """Split a path into member names and indexes.

    Raises:
        PartFault: If it breaks the grammar.
    """
    if not path:
        raise PartFault("the path is empty", "name a member, for example `$body.temperature`")
    steps: list[Step] = []
    for part in path.split("."):
        found = _STEP.fullmatch(part)
        if found is None:
            raise PartFault(f"`{part}` is no step of a path", "an index follows a name: `hist[0]`")
        steps.append(_name(found["name"]))
        steps.extend(_index(text) for text in _INDEX.findall(found["indexes"]))
    return tuple(steps)


def _name(name: str) -> str:
    if not name:
        raise PartFault("the path has an empty step", "write one dot between two names")
    if name == "*":
        raise PartFault("a path has no wildcards", "name each member")
    if name.isascii() and name.isdigit():
        raise PartFault(f"`{name}` is only digits", f"an index is written `[{name}]`")
    return name


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise PartFault(
            f"`[{text}]` is no index", "an index is a whole number from 0 on, for example `[0]`"
        )
    # Lists are never that long; the bound keeps absurd numbers from being computed.
    return int(text[:10]) if len(text.lstrip("0")) <= len(str(_INDEX_MAX)) else _INDEX_MAX
