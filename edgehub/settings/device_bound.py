"""Settings of messages to devices and modules.

Owns that section of the model; calls nothing of the hub.
"""

from __future__ import annotations

from pydantic import Field

from edgehub.settings.values import Section, Whole


class DeviceBoundSettings(Section):
    """`[device_bound]`: messages to devices and modules, stored until they are acknowledged."""

    waiting_max: Whole = Field(
        default=50,
        ge=1,
        le=1000,
        description="Messages that wait for one device or module; more are refused.",
    )
    bytes_max: Whole = Field(
        default=16 * 2**20,
        ge=2**16,
        le=2**30,
        description="Bytes of all messages that wait, in memory and on disk; more are refused.",
    )
    ttl_s: Whole = Field(
        default=3600,
        ge=1,
        le=48 * 3600,
        description="Time to live of a message whose sender names none; at most 48 hours.",
    )
    deliveries_max: Whole = Field(
        default=10,
        ge=1,
        le=100,
        description="Deliveries without an acknowledgement until it becomes a dead letter.",
    )
