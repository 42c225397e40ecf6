"""Write the parts of the reference that the code states: settings, metrics, help of the commands.

`make docs` runs it. A page holds such a part between `<!-- generated: KIND NAME -->` and
`<!-- end -->`; all else on it is written by hand. With `--check` nothing is written, and the exit
code is 1 if a page is not what the code says.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from edgehub.cli.main import cli
from edgehub.settings import ENDPOINT_TYPES, Settings
from edgehub.settings.fields import plain_fields
from edgehub.settings.sections import endpoint_kind, section_types
from edgehub.web.figures import ENDPOINTS, FIGURES, LIMITS, QUEUES
from edgehub.web.metrics import text as exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

    from edgehub.settings.fields import SettingField

_PAGES: Final = Path(__file__).parent
_COMMANDS: Final = _PAGES / "reference" / "cli"
_PART: Final = re.compile(
    r"(<!-- generated: (\w+)(?: (\w[\w. ]*))? -->\n).*?(<!-- end -->)", re.DOTALL
)
_WIDTH: Final = 100
_KIB: Final = 1024
_PORT_MAX: Final = 65535
_EMPTY_STATUS: Final[dict[str, Any]] = {
    "version": "",
    "phase": "",
    "warnings": [],
    "stalled": [],
    "queues": [],
    "endpoints": [],
}
_LABELS: Final = {
    "build_info": ("version",),
    "phase": ("phase",),
    "message_latency_seconds": ("endpoint", "priority", "quantile"),
    "endpoint_state": ("endpoint", "state"),
    "send_failures_total": ("endpoint", "kind"),
    **{name: ("cap", "queue") for name, _, _ in LIMITS},
    **{name: ("endpoint", "priority") for name, _, _ in QUEUES},
    **{name: ("endpoint",) for name, _, _ in ENDPOINTS},
    **{each.name: (*dict(each.labels), *filter(None, [each.label])) for each in FIGURES},
}


def command_help(name: str) -> Iterator[str]:
    """Return what `--help` of a command prints, as a block of code."""
    context = click.Context(
        cli, info_name="edgehub", terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group), name
        found = command.get_command(context, word)
        assert found is not None, name
        command, context = found, click.Context(found, context, info_name=word)
    yield "```text"
    yield from command.get_help(context).splitlines()
    yield "```"


def commands(_name: str) -> Iterator[str]:
    """Return the table of all commands, each with a link to its section."""
    yield "| command | what it does |"
    yield "|---|---|"
    for name, command in _leaves(cli, ""):
        marker = f"<!-- generated: help {name} -->"
        pages = [page for page in _COMMANDS.glob("*.md") if marker in page.read_text("utf-8")]
        assert len(pages) == 1, f"{_COMMANDS} needs one section `edgehub {name}` with {marker}"
        anchor = f"edgehub {name}".replace(" ", "-")
        about = command.get_short_help_str(limit=_WIDTH).replace("|", "\\|")
        yield f"| [`edgehub {name}`](cli/{pages[0].name}#{anchor}) | {about} |"


def _leaves(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{prefix}{word} ")
        else:
            yield f"{prefix}{word}", command


def metrics(_name: str) -> Iterator[str]:
    """Return the table of all metrics, in the order of the exposition."""
    yield "| `edgehub_` | type | labels | meaning |"
    yield "|---|---|---|---|"
    found = re.findall(
        r"^# HELP edgehub_(\w+) (.*)\n# TYPE \S+ (\w+)$", exposition(_EMPTY_STATUS), re.MULTILINE
    )
    for name, about, kind in found:
        labels = ", ".join(f"`{label}`" for label in _LABELS.get(name, ()))
        yield f"| `{name}` | {kind} | {labels} | {about.rstrip('.')} |"


def settings(name: str) -> Iterator[str]:
    """Return the table of the keys of a section."""
    yield "| key | default | live | meaning |"
    yield "|---|---|---|---|"
    for field in sorted(_fields(name), key=lambda each: not each.required):
        live = "yes" if field.live else ""
        yield f"| `{field.name}` | {_default(field)} | {live} | {_meaning(field)} |"


def _fields(name: str) -> Iterator[SettingField]:
    """Yield those of a section; `endpoints` has the keys of all types, a type its own."""
    if not name.startswith("endpoints"):
        yield from plain_fields(_section(name), f"{name}." if name else "")
        return
    types = {endpoint_kind(kind): kind for kind in ENDPOINT_TYPES}
    common = set.intersection(*(set(kind.model_fields) for kind in ENDPOINT_TYPES))
    kind = name.removeprefix("endpoints").lstrip(".")
    for field in plain_fields(types[kind or "file"], "endpoints.name."):
        if (field.name in common) == (not kind):
            yield field


def _section(name: str) -> type[BaseModel]:
    if not name:
        return Settings
    return section_types(Settings.model_fields[name])[0]


def _default(field: SettingField) -> str:
    if field.required:
        return "required"
    if field.default is None or field.default in ((), [], {}):
        return "none"
    if field.unit == "bytes" and isinstance(field.default, int):
        for unit, size in (("GiB", _KIB**3), ("MiB", _KIB**2), ("KiB", _KIB)):
            if field.default and field.default % size == 0:
                return f"{field.default // size} {unit}"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, int):
        separator = " " if field.default > _PORT_MAX else ""
        return f"{field.default:,}".replace(",", separator)
    return f"`{field.default}`"


def _meaning(field: SettingField) -> str:
    about = field.description.rstrip(".").replace("\n", " ").replace("|", "\\|")
    needs = f"; with `{field.needs}` only" if field.needs else ""
    other = f"; instead of `{field.instead_of}`" if field.instead_of else ""
    return f"{about}{needs}{other}"


_KINDS: Final[dict[str, Callable[[str], Iterator[str]]]] = {
    "commands": commands,
    "help": command_help,
    "metrics": metrics,
    "settings": settings,
}


def _filled(page: str) -> str:
    def fill(part: re.Match[str]) -> str:
        lines = "\n".join(_KINDS[part[2]](part[3] or ""))
        return f"{part[1]}\n{lines}\n\n{part[4]}"

    return _PART.sub(fill, page)


def main(arguments: list[str]) -> int:
    """Fill in all pages, or name those that differ."""
    stale = []
    for page in sorted(_PAGES.rglob("*.md")):
        before = page.read_text("utf-8")
        after = _filled(before)
        if after != before:
            stale.append(page)
            if "--check" not in arguments:
                page.write_text(after, "utf-8")
    if stale and "--check" in arguments:
        names = ", ".join(str(page.relative_to(_PAGES.parent)) for page in stale)
        sys.stderr.write(f"{names}: the code says something else; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
