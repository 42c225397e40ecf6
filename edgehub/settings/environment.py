"""Settings from environment variables: `EDGEHUB_<KEY>` and `EDGEHUB_<SECTION>__<KEY>`.

Owns what pydantic-settings makes of them; imported where there are such variables only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as PydanticSettingsError
from pydantic_settings.sources import EnvSettingsSource

from edgehub.errors import ConfigError
from edgehub.settings.model import VARIABLE_PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Variables(Settings, BaseSettings):
    """The settings as a source reads them; nothing is checked against it."""

    model_config = SettingsConfigDict(
        defer_build=True, env_prefix=VARIABLE_PREFIX, env_nested_delimiter="__"
    )


def read_environment() -> Mapping[str, Any]:
    """Return the nested values that variables have, not checked yet.

    Raises:
        ConfigError: If a variable that holds a section is no JSON object.
    """
    try:
        return EnvSettingsSource(_Variables)()
    except PydanticSettingsError as error:
        name = re.search(r'field "(\w+)"', str(error))
        key = f"{VARIABLE_PREFIX}{name[1].upper()}" if name else "environment"
        hint = f"or set its keys one by one: {key}__<KEY>"
        raise ConfigError(key, "not a JSON object", hint) from error
