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
        faults: Why it was refused; empty = it was not.
        applied: Keys of settings whose value in force changed.
        needs_restart: Settings that change at the next start, with `key` and `wanted`.
        certificate_changed: The listener shows another certificate, or trusts others.
        files_changed: Keys of settings whose file holds something else, a password for one.
        routes: Number of routes in force.
        endpoints: Ids by what became of them: `added`; `replaced`, that is drained and started
            again; `adjusted` while they went on; `removed`, so that what waits is orphaned.
        warnings: What is accepted but hardly meant.
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
