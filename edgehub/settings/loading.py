"""Settings from their three places: `edgehub.toml`, environment variables and flags.

Owns the order of precedence and what counts as a variable of ours. Invariant: whatever is wrong in
any of the places becomes one `SettingsError` that names the place.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import ValidationError
from pydantic.experimental.arguments_schema import generate_arguments_schema
from pydantic_core import ArgsKwargs, SchemaValidator

from edgehub.errors import ConfigError
from edgehub.routes.hints import near_miss
from edgehub.settings.faults import Origins, SettingsError, faults_of, faulty_paths, is_in, near
from edgehub.settings.model import VARIABLE_PREFIX, Settings
from edgehub.settings.sections import is_by_name, section_types
from edgehub.storage.credentials import CREDENTIAL
from edgehub.storage.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_CLEAN_UP: Final = "checkentirequeueoncleanup"
_PLACE: Final = ("data_dir", "control_socket")
_CLEAN_UP_PATH: Final = ("store", "check_entire_queue_on_cleanup")
_FIRST_SECTION: Final = re.compile(r"^\s*\[", re.MULTILINE)
# What Kubernetes puts into the environment for a service of our name.
_SERVICE_ADDRESS: Final = ("tcp://", "udp://", "sctp://")


def load_settings(file: Path | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings: flags before environment before file before defaults.

    Args:
        file: TOML file, None = none. Relative paths in it count from its folder.
        flags: Nested values from the command line.

    Raises:
        SettingsError: With every fault, if anything is wrong or unknown.
    """
    return check_settings(read_document(file), file=file, flags=flags)


def find_hub(file: Path | None) -> Settings | None:
    """Return settings that say where the hub is and nothing else, from wrong ones.

    Args:
        file: TOML file, None = none. Of one that is no TOML what is above its first section counts.

    Returns:
        None if that is not known: a guess might be another hub.
    """
    document: dict[str, Any] | None
    try:
        document = read_document(file)
    except SettingsError as error:
        if file is None or isinstance(error.__cause__, OSError):
            return None
        document = _top_of(file)
    if document is None:
        return None
    given: dict[str, Any] = {key: document[key] for key in _PLACE if key in document}
    for key in _PLACE:
        if (variable := environment_variable([key])) is not None:
            given[key] = os.environ[variable]
    try:
        return _checked(given)
    except ValidationError:
        return None


@cache
def settings_check() -> SchemaValidator:
    """Return what checks settings, as the argument of a function.

    It takes 2 MB and a twentieth of a second, so it is kept until `cache_clear()`. The validator of
    the model would live as long as the process; that one and a `TypeAdapter` look for plug-ins of
    pydantic in the metadata of all packages, and what reads those takes another megabyte.
    """
    return SchemaValidator(generate_arguments_schema(_take))


def _take(settings: Settings) -> None:
    """Only its signature counts."""


def _checked(values: Mapping[str, Any]) -> Settings:
    (settings,), _ = settings_check().validate_python(ArgsKwargs((values,)))
    assert isinstance(settings, Settings)
    return settings


def check_settings(
    document: Mapping[str, Any], *, file: Path | None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """Check a document together with environment and flags.

    Args:
        document: What `read_document` gave.
        file: Its name, for faults.
        flags: Nested values from the command line.

    Raises:
        SettingsError: With every fault, if anything is wrong or unknown.
    """
    cleanup = next((name for name in os.environ if name.lower() == _CLEAN_UP), None)
    given = dict(flags or {})
    unknown = list(_unknown_environment())
    try:
        below = _merged(_environment(), document)
        loaded = _checked(_merged(_with_cleanup(given, cleanup), below))
    except ValidationError as invalid:
        origins = Origins(file=file, document=document, flags=given, variable=environment_variable)
        details = invalid.errors()
        for detail in details:
            # Without the number of the argument.
            detail["loc"] = detail["loc"][1:]
        faults = [fault for detail in details for fault in faults_of(origins, detail)]
        paths = [path for detail in details for path in faulty_paths(detail)]
        raise SettingsError([*faults, *unknown], paths) from invalid
    except ConfigError as invalid:
        raise SettingsError([invalid, *unknown]) from invalid
    if unknown:
        raise SettingsError(unknown)
    return loaded


def read_document(file: Path | None) -> dict[str, Any]:
    """Read the TOML file, its relative paths made whole; empty where there is none.

    Raises:
        SettingsError: If it cannot be read or is no TOML.
    """
    if file is None:
        return {}
    try:
        document = tomllib.loads(_text_of(file))
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError([ConfigError(str(file), reason, "check the path")]) from error
    except (ValueError, RecursionError) as error:
        # Not only `TOMLDecodeError`: a number of thousands of digits is a plain `ValueError`.
        raise SettingsError([ConfigError(str(file), f"not TOML: {error}")]) from error
    return _anchored(document, [Settings], file.parent)


def _text_of(file: Path, errors: str = "strict") -> str:
    # Editors on Windows put a byte order mark in front.
    return read_regular(file).decode("utf-8-sig", errors)


def _top_of(file: Path) -> dict[str, Any] | None:
    text = _text_of(file, "replace")
    try:
        document = tomllib.loads(_FIRST_SECTION.split(text, maxsplit=1)[0])
    except (ValueError, RecursionError):
        return None
    return _anchored(document, [Settings], file.parent)


def _anchored(
    document: dict[str, Any], models: Sequence[type[BaseModel]], folder: Path
) -> dict[str, Any]:
    """Resolve relative paths from `folder`; what does not fit the models stays as it is."""
    anchored = dict(document)
    for name, value in document.items():
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        inner = [kind for field in fields for kind in section_types(field)]
        if isinstance(value, dict) and any(map(is_by_name, fields)):
            anchored[name] = {
                key: _anchored(each, inner, folder) if isinstance(each, dict) else each
                for key, each in value.items()
            }
        elif isinstance(value, dict):
            anchored[name] = _anchored(value, inner, folder)
        elif isinstance(value, str) and _is_relative(value) and any(map(_is_path, fields)):
            anchored[name] = str(folder / value)
    return anchored


def _is_relative(value: str) -> bool:
    return bool(value) and not value.startswith(CREDENTIAL)


def _is_path(field: FieldInfo) -> bool:
    return Path in (field.annotation, *get_args(field.annotation))


def _environment() -> Mapping[str, Any]:
    ours = [name.lower() for name in os.environ if name.upper().startswith(VARIABLE_PREFIX)]
    keys = {name[len(VARIABLE_PREFIX) :].partition("__")[0] for name in ours}
    if keys.isdisjoint(Settings.model_fields):
        return {}
    # Takes 2 % of a hub's memory and 4 % of its start, and most have a file only.
    from edgehub.settings.environment import read_environment  # noqa: PLC0415

    return read_environment()


def _merged(values: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values, with those from below where there are none."""
    merged = dict(below)
    for name, value in values.items():
        other = merged.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            merged[name] = _merged(value, other)
        else:
            merged[name] = value
    return merged


def _with_cleanup(flags: dict[str, Any], variable: str | None) -> dict[str, Any]:
    # Deployments written for IoT Edge set this flag by its own name, in any letter case.
    if variable is None:
        return flags
    store = {"check_entire_queue_on_cleanup": os.environ[variable], **flags.get("store", {})}
    return {**flags, "store": store}


def _unknown_environment() -> Iterator[ConfigError]:
    # Others share our prefix: Kubernetes sets EDGEHUB_SERVICE_HOST for a service of our name. So a
    # name is a mistake if it has the form of a nested key, or if it nearly is one of ours.
    known = {name.upper() for name in Settings.model_fields}
    joined = {f"{section}_{key}": f"{section}__{key}" for section, key in _section_keys()}
    for name, value in os.environ.items():
        prefix, _, key = name.upper().partition("_")
        section = key.split("__", 1)[0]
        if prefix != "EDGEHUB" or section in known:
            continue
        if key in joined and not value.startswith(_SERVICE_ADDRESS):
            hint = f"did you mean {VARIABLE_PREFIX}{joined[key]}, with two underscores?"
            yield ConfigError(name, "unknown environment variable", hint)
            continue
        close = near_miss(section, sorted(known), cutoff=0.75)
        if close or "__" in key:
            hint = f"did you mean {VARIABLE_PREFIX}{close}?" if close else near(section, known)
            yield ConfigError(name, "unknown environment variable", hint)


def _section_keys() -> Iterator[tuple[str, str]]:
    for name, field in Settings.model_fields.items():
        for model in () if is_by_name(field) else section_types(field):
            yield from ((name.upper(), key.upper()) for key in model.model_fields)


def environment_variable(path: Sequence[str]) -> str | None:
    """Name the environment variable that sets the key at `path`, None = none does."""
    wanted = tuple(part.lower() for part in path)
    found: str | None = None
    for name, text in os.environ.items():
        if not name.upper().startswith(VARIABLE_PREFIX):
            if wanted == _CLEAN_UP_PATH and name.lower() == _CLEAN_UP:
                return name
            continue
        parts = tuple(name.lower()[len(VARIABLE_PREFIX) :].split("__"))
        if parts == wanted:
            found = name
        elif parts == wanted[: len(parts)] and _holds(text, wanted[len(parts) :]):
            found = found or name
    return found


def _holds(text: str, path: Sequence[str]) -> bool:
    # A whole section may be given as a JSON object; keys given one by one go before it.
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return is_in(value, path)
