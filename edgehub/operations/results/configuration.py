"""The configuration, as operations return them."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class ConfigurationDocument(TypedDict):
    """The settings in force.

    Attributes:
        running: True: a hub runs with them.
        settings: `value`, `origin` and `place` of each, by dotted key.
        derived: What follows from them.
    """

    running: bool
    settings: dict[str, dict[str, Any]]
    derived: dict[str, Any]


class ReloadDocument(TypedDict):
    """The outcome of a reload.

    Attributes:
        faults: Why it was refused.
        applied: Keys of settings that changed.
        needs_restart: Settings that change at the next start, with `key` and `wanted`.
        endpoints: What became of them, by `added`, `replaced`, `adjusted` and `removed`.
    """

    outcome: Literal["refused", "applied", "unchanged"]
    faults: list[dict[str, Any]]
    applied: list[str]
    needs_restart: list[dict[str, Any]]
    manifest_changed: bool
    identities_changed: bool
    tokens_changed: bool
    certificate_changed: bool
    files_changed: list[str]
    routes: int
    endpoints: dict[str, list[str]]
    warnings: list[str]
