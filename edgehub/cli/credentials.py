"""What the commands on credential files share: where the file is.

`edgehub identity` and `edgehub token` work on such a file and ask no daemon, since who may sign in
must be known before the first start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from edgehub.cli.output import json_option_of
from edgehub.errors import ConfigError
from edgehub.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.settings import Settings


json_option: Final = json_option_of("Print one JSON array.")


class CredentialFile:
    """A file of credentials as commands name it.

    Args:
        what: What it holds, in the plural.
        setting: Dotted key of the setting that names it.
        get: Takes its path out of the settings.

    Attributes:
        option: The option that names another one.
    """

    def __init__(self, what: str, setting: str, get: Callable[[Settings], Path | None]) -> None:
        self._what = what
        self._setting = setting
        self._get = get
        self.option = click.option(
            "--file",
            "file",
            type=click.Path(dir_okay=False, path_type=Path),
            help=f"{what.capitalize()} file; default: {setting} of the settings.",
        )

    def path(self, file: Path | None, obj: dict[str, Any] | None) -> Path:
        """Return the file that is meant.

        Args:
            file: What the option says.
            obj: Of the command line, with the settings file.

        Raises:
            ConfigError: If it can be in no folder.
        """
        path = file or self._get(load_settings((obj or {}).get("config")))
        if path is None:
            raise click.UsageError(
                f"no {self._what} file: give --file, or set {self._setting} in the settings"
            )
        if not path.parent.is_dir():
            raise ConfigError(str(path), "its folder does not exist", f"mkdir -p {path.parent}")
        return path
