"""A join request of a device: one hub answers it, and the others forget the old session.

Acts on a `Device` inside its queue and owns nothing. Invariants: the coordinator's counter is
cleared only after the request's MIC was found right and its session was kept, and the device's
owner stays; a hub that was
refused has no flag changed, opens nothing, and loads the device before its next frame; of forged
and replayed requests of a device in memory, one in a while at most is more than a look at memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from msgspec.structs import replace

from edgehub.devices.affinity.coordinator import JoinClaim
from edgehub.devices.affinity.outcome import FrameOutcome, Reason, Result
from edgehub.devices.affinity.recent_frames import Reception
from edgehub.devices.faults import CoordinatorUnreachableError
from edgehub.devices.request_queue import RequestKind

if TYPE_CHECKING:
    from edgehub.devices.device import Device
    from edgehub.devices.source import SessionState, StoredDevice

log = structlog.get_logger(__name__)

DEV_NONCES_MAX = 1024
"""Nonces remembered per device, the oldest leaves."""


class JoinRequest(Struct, frozen=True, kw_only=True):
    """A join request as a head received it.

    Attributes:
        device_id: DevEUI.
        dev_nonce: The device's number for it.
        station: Station of this hub that received it.
        key: What all copies of it have in common, and no forged one: nonce and MIC.
        fits: Returns whether its MIC is that of a device.
    """

    device_id: str
    dev_nonce: int
    station: str
    key: str
    fits: Callable[[StoredDevice], bool]


Accept = Callable[["StoredDevice"], Awaitable["SessionState"]]
"""Makes a session, name and address."""


def is_used(dev_nonce: int, stored: StoredDevice) -> bool:
    """Return whether a device may not join with a nonce any more: an old request played back."""
    profile, used = stored.profile.lora, stored.session.dev_nonces
    if profile is not None and profile.mac_version.counts_nonces:
        return bool(used) and dev_nonce <= max(used)
    return dev_nonce in used


async def process_join(device: Device, request: JoinRequest, accept: Accept) -> FrameOutcome:
    """Process a join request in the device's queue.

    Raises:
        DeviceError: It failed, by the coordinator, the source or the connection.
    """
    copy = device.join_copies.classify(request.key, request.station)
    if copy is Reception.OTHER_STATION:
        return _outcome(device, Result.DROPPED, Reason.SECOND_STATION)
    try:
        return await device.queue.run(RequestKind.JOIN, lambda: _join(device, request, accept))
    except BaseException:
        device.join_copies.forget(request.key)
        raise


async def _join(device: Device, request: JoinRequest, accept: Accept) -> FrameOutcome:
    shared = device.shared
    reason = _fault(device, request)
    if reason is not None and not device.may_reread(RequestKind.JOIN):
        return _outcome(device, Result.REFUSED, reason)
    if await shared.source.gateway_of(device.device_id) not in (None, shared.hub_id):
        return _outcome(device, Result.REFUSED, Reason.BELONGS_TO_ANOTHER_GATEWAY)
    claim = JoinClaim(device_id=device.device_id, hub_id=shared.hub_id, key=request.key)
    if not await device.ask(shared.coordinator.claim_join(claim)):
        if device.stored is None or not is_used(request.dev_nonce, device.stored):
            device.forget()  # another hub answered it
        return _outcome(device, Result.REFUSED, Reason.DEV_NONCE_USED)
    outcome = None
    try:
        outcome = await _answer(device, request, accept, claim)
    finally:
        if outcome is None or outcome.result is not Result.ACCEPTED:
            await _finish(device, claim, None)
    return outcome


async def _answer(
    device: Device, request: JoinRequest, accept: Accept, claim: JoinClaim
) -> FrameOutcome:
    shared = device.shared
    async with device.connection.activity():
        device.connection.request_close()
        await device.load()  # also where it is in memory: another hub may have answered it since
        if device.profile.gateway_id not in (None, shared.hub_id):
            return _outcome(device, Result.REFUSED, Reason.BELONGS_TO_ANOTHER_GATEWAY)
        if (reason := _fault(device, request)) is not None:
            return _outcome(device, Result.REFUSED, reason)
        assert device.stored is not None
        session = await accept(device.stored)
        nonces = (*device.session.dev_nonces, request.dev_nonce)[-DEV_NONCES_MAX:]
        generation = device.session.generation + 1
        joined = replace(session, generation=generation, f_cnt_up=0, dev_nonces=nonces)
        if shared.source.needs_connection:
            await device.connection.ensure_open(entitled=True)
        await shared.source.save(device.device_id, joined)
        device.adopt(replace(device.stored, session=joined))
        await _finish(device, claim, generation)
    return _outcome(device, Result.ACCEPTED)


def _fault(device: Device, request: JoinRequest) -> Reason | None:
    """Return why what is known of a device refuses a request, None = it does not."""
    stored = device.stored
    if stored is None:
        return None
    if not request.fits(stored):
        return Reason.JOIN_MIC_FAILED
    return Reason.DEV_NONCE_USED if is_used(request.dev_nonce, stored) else None


async def _finish(device: Device, claim: JoinClaim, generation: int | None) -> None:
    coordinator = device.shared.coordinator
    try:
        await device.ask(coordinator.finish_join(claim, generation=generation))
    except CoordinatorUnreachableError as exc:
        # The claim ends by itself, and the first frame of a new session clears the counter too.
        log.warning("affinity.join_not_finished", device_id=device.device_id, reason=str(exc))


def _outcome(device: Device, result: Result, reason: Reason | None = None) -> FrameOutcome:
    return FrameOutcome(
        device_id=device.device_id,
        result=result,
        reason=reason,
        answer=result is Result.ACCEPTED,
        saved=result is Result.ACCEPTED,
    )
