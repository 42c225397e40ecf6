"""Commands over the control socket of a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgehub.cli.daemon import exchange, result_of

if TYPE_CHECKING:
    from pathlib import Path


def call(path: Path, command: str, **arguments: Any) -> Any:
    """Return the result of a command."""
    return result_of(exchange(path, command, **arguments))
