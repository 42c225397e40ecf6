"""The commented settings file: every key with its default, its unit and what it is for.

Owns the form. A line `#key = value` holds a default: taken out of its comment it changes nothing.
A line `##key = value` shows a value; all of them together are valid. `###` marks a key that would
exclude another one.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgehub.settings import ENDPOINT_TYPES, Settings, TenantSettings
from edgehub.settings.fields import plain_fields
from edgehub.settings.sections import endpoint_kind, is_by_name, section_description, section_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from edgehub.settings.fields import SettingField

_WIDTH: Final = 98
_HEAD: Final = (
    "Settings of an edgehub daemon: `edgehub run --config FILE`, or edgehub.toml in the working "
    "folder.\n\n"
    "Lines of the form `#key = value` hold the defaults; those with `##` show a value where there "
    "is no default, or in a section that is off; `###` is an alternative to another key. Units "
    "stand in the names: _s seconds, _ms milliseconds, bytes. Environment variables win over this "
    "file: EDGEHUB_STORE__COMMIT_DELAY_MS=50 is commit_delay_ms of [store]. Secrets are never "
    "written here, only the names of files that hold them, or `credential:<name>` for one that "
    "systemd or a container engine hands over. Check with `edgehub config validate`; "
    "`edgehub config reload`, or SIGHUP, applies changes to what is marked live."
)


def settings_example() -> str:
    """Return the text of the file."""
    lines = [*_prose(_HEAD), ""]
    lines += _keys(Settings, "", optional=False)
    for name, info in Settings.model_fields.items():
        sections = section_types(info)
        if sections and not is_by_name(info):
            optional = info.default is None
            lines += _section(name, section_description(info), sections[0], optional=optional)
    shown = section_types(Settings.model_fields["upstream"])[0]
    about = Settings.model_fields["endpoints"].description or ""
    for endpoint in ENDPOINT_TYPES:
        if endpoint is not shown:
            lines += _section(
                f"endpoints.{endpoint_kind(endpoint)}", about, endpoint, optional=True
            )
    about = Settings.model_fields["tenants"].description or ""
    lines += _section('tenants."acme/press"', about, TenantSettings, optional=True)
    return "\n".join(lines).rstrip() + "\n"


def _section(
    name: str, description: str, section: type[BaseModel], *, optional: bool
) -> Iterator[str]:
    yield ""
    yield from _prose(description)
    yield f"##[{name}]" if optional else f"[{name}]"
    yield ""
    yield from _keys(section, f"{name}.", optional=optional)


def _keys(section: type[BaseModel], prefix: str, *, optional: bool) -> Iterator[str]:
    for field in sorted(plain_fields(section, prefix), key=lambda field: not field.required):
        yield from _prose(field.description)
        yield from _prose(_remark(field))
        if optional or field.default is None or field.needs:
            assert field.example is not None, f"{field.key} needs an example"
            mark = "###" if field.instead_of else "##"
            yield f"{mark}{field.name} = {_toml(field.example)}"
        else:
            yield f"#{field.name} = {_toml(field.default)}"
        yield ""


def _remark(field: SettingField) -> str:
    if field.required:
        default = "Must be given."
    elif field.default is None:
        default = "No default."
    else:
        default = f"Default: {_toml(field.default)}."
    unit = f" Unit: {field.unit}." if field.unit else ""
    needs = f" With {field.needs} only." if field.needs else ""
    other = f" Instead of {field.instead_of}." if field.instead_of else ""
    return f"{default}{unit}{needs}{other} {'Live.' if field.live else 'Needs a restart.'}"


def _prose(text: str) -> Iterator[str]:
    for paragraph in text.split("\n"):
        yield from (f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH)) if paragraph else "#"


def _toml(value: Any) -> str:
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)
