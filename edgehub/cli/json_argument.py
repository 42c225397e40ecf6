"""JSON as an argument of commands."""

from __future__ import annotations

import json
from typing import Any

import click


class JsonArgument(click.ParamType[Any]):
    """A JSON value."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse it.

        Raises:
            click.UsageError: It is no JSON.
        """
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
