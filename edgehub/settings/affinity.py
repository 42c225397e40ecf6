"""Settings of devices that several hubs hear.

Owns that section of the model; calls nothing of the hub.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from edgehub.settings.values import Real, Section, Whole

KEEP_ALIVE_S_MIN = 60


class AffinitySettings(Section):
    """`[affinity]`: which hub speaks for a device that several hear."""

    coordinator: Literal["off", "in-process", "redis"] = Field(
        default="off",
        description="Who elects: off = no election, this hub speaks for all its devices; "
        "in-process = this hub alone, duplicates are dropped; redis = all hubs of that server "
        "and prefix.",
    )
    registry: Literal["state", "redis", "twin"] = Field(
        default="state",
        description="Where devices' settings and counters are kept: state = in state.db; redis = "
        "shared by the hubs; twin = in each device's twin upstream.",
    )
    processing_delay_ms: Whole = Field(
        default=400,
        ge=0,
        le=10_000,
        description="How long a hub that does not own a device waits before it takes part in the "
        "election for one of its messages; 0 = no wait.",
    )
    deduplication: Literal["drop", "mark", "none"] = Field(
        default="drop",
        description="What happens to a message that several hubs receive: drop = one hub sends it; "
        "mark = all send it, and the later ones are marked; none = all send it.",
    )
    keep_alive_s: Whole = Field(
        default=0,
        ge=0,
        le=86_400,
        description="Time without a message after which a device's own session upstream is closed, "
        "at least 60; 0 = never.",
    )
    answer_timeout_s: Real = Field(
        default=10, gt=0, le=60, description="Longest wait for an answer of the coordinator."
    )
    devices_max: Whole = Field(
        default=10_000, ge=1, le=1_000_000, description="Devices in memory at once."
    )

    @model_validator(mode="after")
    def _keep_alive_is_long_enough(self) -> AffinitySettings:
        if 0 < self.keep_alive_s < KEEP_ALIVE_S_MIN:
            raise ValueError(f"keep_alive_s is 0, or at least {KEEP_ALIVE_S_MIN}")
        return self
