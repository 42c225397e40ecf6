"""What holds for every test."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from edgehub.telemetry.log import set_level

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = 500 if os.environ.get("EDGEHUB_SOAK") else 20
"""Of each property; `make soak` runs all of them again."""

# Others use the machine too: how long one example takes says nothing; tests have a time-out.
settings.register_profile(
    "edgehub",
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("edgehub")


@pytest.fixture(autouse=True)
def _log_set_up_of_its_own() -> Iterator[None]:
    """Undo the process-wide log set-up of a command that a test runs in this process."""
    before = structlog.get_config()
    yield
    if structlog.get_config() == before:
        return
    structlog.configure(**before)
    set_level("info")
    for name, module in list(sys.modules.items()):
        if name.startswith("edgehub."):
            # A logger that was used meanwhile keeps that set-up in its instance.
            logger = getattr(module, "log", None)
            if isinstance(logger, structlog._config.BoundLoggerLazyProxy):  # noqa: SLF001 - no public name
                logger.__dict__.pop("bind", None)
