"""The contract of the coordinator, which elects one hub per device.

Owns the shapes of questions, answers and notices. Rule of the election: no record, or a higher
frame counter: the hub that asks gets the device; the same counter from the recorded hub: allowed;
all else is a duplicate. A frame of a newer session than the recorded one starts the counter anew,
one of an older session is late, and a duplicate. Whenever the device gets another hub, the former
one gets a notice. A coordinator that gives no answer says nothing about ownership.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """One hub's question about one message.

    Attributes:
        device_id: Whose message.
        hub_id: Who asks.
        f_cnt: Frame counter, 32 bits.
        generation: Number of the device's session to which the counter belongs.
        restarted: The device may have started again: a recorded counter above 1 is cleared first.
    """

    device_id: str
    hub_id: str
    f_cnt: int
    generation: int = 0
    restarted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The coordinator's answer.

    Attributes:
        won: Whether the hub that asked handles the message.
        owner: Hub to which the device belongs now.
        epoch: Number of the election that gave it the device.
        f_cnt: Highest counter seen.
    """

    won: bool
    owner: str
    epoch: int
    f_cnt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinClaim:
    """One hub's wish to answer one join request.

    Attributes:
        device_id: DevEUI.
        hub_id: Who asks.
        key: What all copies of the request have in common, and no forged one: nonce and MIC.
    """

    device_id: str
    hub_id: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Tells a hub that a device is no longer its own.

    Attributes:
        position: Place in the hub's stream, to be handed back when reading on.
        device_id: Which device.
        epoch: Number of the election that gave it away.
        owner: To whom.
    """

    position: str
    device_id: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeBatch:
    """What a hub's stream holds behind a position.

    Attributes:
        notices: Oldest first.
        position: From where to read on afterwards.
        missed: Notices before them are gone, so nothing is known about any device.
    """

    notices: tuple[Notice, ...]
    position: str
    missed: bool = False


class Coordinator(Protocol):
    """Elects hubs; every call is atomic per device."""

    async def elect(self, ballot: Ballot) -> Verdict:
        """Judge one message.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def claim_join(self, claim: JoinClaim) -> bool:
        """Take a join request, False = another hub (or this one) has taken it before.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def finish_join(self, claim: JoinClaim, *, generation: int | None) -> None:
        """Clear the device's counter and keep its owner; or give the claim back.

        Args:
            claim: What was claimed.
            generation: Number of the new session, None = the request was not accepted.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def notices(self, hub_id: str, after: str) -> NoticeBatch:
        """Wait for notices to a hub; after "" = from the oldest one.

        Raises:
            CoordinatorUnreachableError: No answer.
        """
