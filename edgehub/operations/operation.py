"""What an operation is to those that carry it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Command = Callable[[Mapping[str, Any]], Awaitable[Any]]
