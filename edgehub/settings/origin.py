"""Each setting in force with the place it came from, fit to be shown.

Owns the flat form of settings (`mqtt.port`) and the way they are read again. Invariant: what is
described here holds no secret.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pydantic import BaseModel

from edgehub.settings.faults import is_in
from edgehub.settings.loading import check_settings, environment_variable, read_document
from edgehub.settings.redaction import shown
from edgehub.settings.remainder import settings_without_faults
from edgehub.storage.hub_folder import settings_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from edgehub.errors import ConfigError
    from edgehub.settings import Settings, SettingsError


class OriginKind(StrEnum):
    """Where a value can come from, the strongest last."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Origin(Struct, frozen=True, kw_only=True):
    """Where a value came from.

    Attributes:
        kind: See `OriginKind`.
        place: The file, the variable or the flag; empty for a default.
    """

    kind: OriginKind
    place: str = ""


DEFAULT: Final = Origin(kind=OriginKind.DEFAULT)


class LoadedSettings(Struct, frozen=True, kw_only=True):
    """Settings that were read.

    Attributes:
        settings: The settings.
        origins: Where each came from, by flat key; what has no entry is a default.
        digest: Of the file's content, empty = there was none.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    digest: str = ""


class SettingsSource:
    """A file and flags, which can be read again.

    Args:
        file: TOML file, None = none.
        flags: Nested values from the command line.
        find: Looks for a file at each read as long as there is none.
    """

    __slots__ = ("_file", "_find", "_flags", "_is_kept")

    def __init__(
        self,
        file: Path | None,
        flags: Mapping[str, Any] | None = None,
        *,
        find: Callable[[], Path | None] | None = None,
    ) -> None:
        self._file = file
        self._flags = dict(flags or {})
        self._find = find
        self._is_kept = file is not None

    def read(self) -> LoadedSettings:
        """Read file, environment and flags; blocks on the disk.

        Raises:
            SettingsError: With every fault.
        """
        if not self._is_kept and self._find is not None:
            self._file = self._find()
        document = read_document(self._file)
        digest = settings_digest(self._file)
        settings = check_settings(document, file=self._file, flags=self._flags)
        # A file that was in force and is removed later is a fault, no return to the defaults.
        self._is_kept = self._file is not None
        origins = {
            key: origin
            for key in flat_settings(settings)
            if (origin := self._origin(key.split("."), document)) is not None
        }
        return LoadedSettings(settings=settings, origins=origins, digest=digest)

    def read_rest(self, error: SettingsError) -> tuple[LoadedSettings | None, list[ConfigError]]:
        """Read again what is right of what `read` refused, and further faults of the settings.

        Blocks on the disk. What is right is None where it cannot be separated.
        """
        document = read_document(self._file)
        left, hidden = settings_without_faults(document, error, file=self._file, flags=self._flags)
        return None if left is None else LoadedSettings(settings=left, origins={}), hidden

    def _origin(self, path: list[str], document: Mapping[str, Any]) -> Origin | None:
        if is_in(self._flags, path):
            return Origin(kind=OriginKind.FLAG, place="--" + "-".join(path).replace("_", "-"))
        variable = environment_variable(path)
        if variable is not None:
            return Origin(kind=OriginKind.ENVIRONMENT, place=variable)
        if is_in(document, path):
            return Origin(kind=OriginKind.FILE, place=str(self._file))
        return None


def flat_settings(settings: Settings) -> dict[str, object]:
    """Return every setting by its dotted key, sections taken apart, in the order of the model."""
    return dict(_flat(settings, ""))


def setting_documents(loaded: LoadedSettings) -> dict[str, dict[str, object]]:
    """Describe all settings: value, kind and place of origin, by dotted key."""
    documents: dict[str, dict[str, object]] = {}
    for key, value in flat_settings(loaded.settings).items():
        origin = loaded.origins.get(key, DEFAULT)
        documents[key] = {
            "value": shown(key, value),
            "origin": origin.kind,
            "place": origin.place,
        }
    return documents


def _flat(section: BaseModel, prefix: str) -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and any(isinstance(v, BaseModel) for v in value.values()):
            for key, item in value.items():
                yield from _flat(item, f"{prefix}{name}.{key}.")
        else:
            yield f"{prefix}{name}", value
