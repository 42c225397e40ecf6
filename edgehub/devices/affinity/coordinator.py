"""The contract of the coordinator, which elects one hub per device.

Owns the forms of requests, answers and notices. Rule of the election: no record, or a higher
frame counter: the hub that asks gets the device; the same counter from the recorded hub: allowed;
all else is a duplicate. A frame of a newer session than the recorded one resets the counter,
one of an older session is late, and a duplicate. Whenever the device gets another hub, the former
one gets a notice. A counter for an answer to the device is granted to its owner alone, and never
twice. Without an answer of the coordinator the owner is unknown.

A frame is open from its election until the hub that won reports that it is stored. A hub that lost
may take over one that has been open for `TAKE_OVER_S`: its winner has ended, or cannot store it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

TAKE_OVER_S: Final = 10.0
OPEN_MAX: Final = 8
"""Open frames that are remembered of a device, the newest ones."""


class ElectionRequest(Struct, frozen=True, kw_only=True):
    """A hub's request to handle one message.

    Attributes:
        device_id: Whose message.
        hub_id: Hub that asks.
        f_cnt: Frame counter, 32 bits.
        generation: Number of the device's session to which the counter belongs.
        restarted: The device may have started again: a recorded counter above 1 is cleared first.
    """

    device_id: str
    hub_id: str
    f_cnt: int
    generation: int = 0
    restarted: bool = False


class ElectionResult(Struct, frozen=True, kw_only=True):
    """The coordinator's answer to an `ElectionRequest`.

    Attributes:
        won: Whether the hub that asked handles the message.
        owner: Hub to which the device belongs now.
        epoch: Number of the election that gave it the device.
        former: Hub from which the election took the device, "" = from none.
        is_open: Another hub won the frame, and has not reported that it is stored.
    """

    won: bool
    owner: str
    epoch: int
    former: str = ""
    is_open: bool = False


class ElectedFrame(NamedTuple):
    """A frame of which a hub was elected.

    Attributes:
        device_id: Id of the device.
        generation: Number of the session.
        f_cnt: Its counter.
    """

    device_id: str
    generation: int
    f_cnt: int


class DownlinkClaim(Struct, frozen=True, kw_only=True):
    """A hub's wish to send a message to a device on its own account (class C).

    Attributes:
        device_id: To which device.
        hub_id: Hub that asks.
        generation: Number of the session to which the counter belongs.
        f_cnt_down: Last downlink counter that the hub knows.
    """

    device_id: str
    hub_id: str
    generation: int
    f_cnt_down: int


class JoinClaim(Struct, frozen=True, kw_only=True):
    """One hub's wish to answer one join request.

    Attributes:
        device_id: DevEUI.
        hub_id: Hub that asks.
        key: What all copies of the request have in common, and no forged one: nonce and MIC.
    """

    device_id: str
    hub_id: str
    key: str


class Notice(Struct, frozen=True, kw_only=True):
    """The message to a hub that it no longer owns a device.

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


class NoticeBatch(Struct, frozen=True, kw_only=True):
    """What a hub's stream holds behind a position.

    Attributes:
        notices: Oldest first.
        position: From where to read on afterwards.
        missed: Notices before them are lost, so nothing is known about any device.
    """

    notices: tuple[Notice, ...]
    position: str
    missed: bool = False


class Coordinator(Protocol):
    """Elects hubs; every call is atomic per device."""

    async def elect(self, ballot: ElectionRequest) -> ElectionResult:
        """Elect the hub that handles one message.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def owner_of(self, device_id: str) -> str:
        """Return the hub that owns a device, "" = none is known.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def take_over(self, frame: ElectedFrame, hub_id: str) -> ElectionResult:
        """Ask for a frame that was open when the election was lost.

        Returns:
            Won: the hub that asks handles it, and owns the device if no newer frame was elected.
            Lost and open: ask again. Lost and not open: it is stored.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def report_stored(self, hub_id: str, frames: Sequence[ElectedFrame]) -> None:
        """Record that frames which a hub won are stored.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def claim_join(self, claim: JoinClaim) -> bool:
        """Claim a join request; False = another hub (or this one) has claimed it before.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def finish_join(self, claim: JoinClaim, *, generation: int | None) -> None:
        """Clear the device's counter and keep its owner; or withdraw the claim.

        Args:
            claim: What was claimed.
            generation: Number of the new session, None = the request was not accepted.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def grant_downlink(self, claim: DownlinkClaim) -> int | None:
        """Return the next downlink counter to the owner of a device; None = another hub owns it.

        Raises:
            CoordinatorUnreachableError: No answer, or it is busy.
        """

    async def notices(self, hub_id: str, after: str, *, wait: bool = True) -> NoticeBatch:
        """Read the notices to a hub behind a position.

        Args:
            hub_id: Id of the hub.
            after: The position; "" = from the oldest one, and nothing is waited for.
            wait: Wait for one if there is none now.

        Raises:
            CoordinatorUnreachableError: No answer.
        """
