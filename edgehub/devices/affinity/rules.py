"""The figures of the affinity that an operator may change, for a whole hub."""

from __future__ import annotations

from msgspec import Struct


class AffinityRules(Struct, frozen=True, kw_only=True):
    """How this hub behaves towards the others.

    Attributes:
        processing_delay_ms: How long a hub that lost a device waits before it asks for it again;
            0 = off: no hub waits, and a refused hub changes nothing.
        answer_timeout_s: How long the coordinator may take for an answer.
        reload_pause_s: A frame that does not fit a loaded device has it read again, but not sooner
            than so long after the last time: frames are easily forged.
        owner_reload_pause_s: The same where reading takes a session upstream, and no other hub can
            have changed what this one knows.
    """

    processing_delay_ms: int = 400
    answer_timeout_s: float = 10.0
    reload_pause_s: float = 10.0
    owner_reload_pause_s: float = 600.0

    @property
    def is_sticky(self) -> bool:
        """Return whether losers wait."""
        return self.processing_delay_ms > 0
