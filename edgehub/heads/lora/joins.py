"""Join requests: their sessions, the accepts that begin them, and what is refused.

Owns the last accept of each device. Elections and nonces are those of `edgehub.devices`. Invariant:
a session is on disk before its accept leaves.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.devices.affinity.join import JoinRequest
from edgehub.devices.affinity.outcome import Reason, Result
from edgehub.devices.faults import DeviceUnknownError
from edgehub.devices.source import RADIO_ADDRESS, Activation, SessionState
from edgehub.heads.lora.downlinks import windows_of
from edgehub.lora import crypto, session
from edgehub.lora.channels import frequency_cf_list, mask_cf_list
from edgehub.lora.device import MacVersion
from edgehub.lora.frames import (
    JoinAcceptFields,
    JoinAcceptFrame,
    MType,
    dl_settings,
    mhdr_of,
)
from edgehub.lora.identifiers import dev_addr_of, dev_addr_text, eui_text
from edgehub.lora.regions import JOIN_ACCEPT_DELAY_S, FixedRegion

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable

    from edgehub.devices.devices import Devices
    from edgehub.devices.source import StoredDevice
    from edgehub.heads.lora.downlinks import Downlinks
    from edgehub.heads.lora.reception import Transmission
    from edgehub.lora.frames import JoinRequestFrame
    from edgehub.lora.regions import Region
    from edgehub.settings import LoraSettings
    from edgehub.telemetry.log_limit import LogLimit

KEPT_MAX: Final = 20_000
"""Devices whose last accept is kept."""


class _Accepted(Struct, frozen=True, kw_only=True):
    mic: bytes
    session: str
    phy_payload: bytes


class JoinServer:
    """Join requests of devices.

    Args:
        settings: How devices are answered.
        region: Of the stations.
        devices: Where requests are processed.
        find: Returns what is listed of a registered device, None = it is none.
        downlinks: Sends accepts.
        spawn: Runs what takes longer than the request.
        counts: Requests by what became of them.
        log: Lines at a bounded rate.
    """

    def __init__(
        self,
        settings: LoraSettings,
        region: Region,
        *,
        devices: Devices,
        find: Callable[[str], Awaitable[StoredDevice | None]],
        downlinks: Downlinks,
        spawn: Callable[[Awaitable[object], str], None],
        counts: Counter[str],
        log: LogLimit,
    ) -> None:
        self._settings = settings
        self._region = region
        self._devices = devices
        self._find = find
        self._downlinks = downlinks
        self._spawn = spawn
        self._counts = counts
        self._log = log
        self._accepted: OrderedDict[str, _Accepted] = OrderedDict()

    async def join(self, frame: JoinRequestFrame, transmission: Transmission, station: str) -> None:
        """Process a request and have it answered.

        Raises:
            DeviceError: It failed.
        """
        device_id = eui_text(frame.dev_eui)
        built: list[bytes] = []

        async def accept(stored: StoredDevice) -> SessionState:
            _check_join_eui(stored, frame)
            state, phy_payload = self._accept(stored, frame)
            built.append(phy_payload)
            return state

        request = JoinRequest(
            device_id=device_id,
            dev_nonce=frame.dev_nonce,
            station=station,
            key=f"{frame.dev_nonce}/{frame.mic.hex()}",
            fits=lambda stored: _is_authentic(stored, frame),
        )
        listed = await self._find(device_id)
        if listed is None:
            raise DeviceUnknownError(device_id, "it is not registered")
        if listed.profile.activation is not Activation.OTAA:
            raise DeviceUnknownError(device_id, "it is not registered as a device that joins")
        outcome = await self._devices.join(request, accept)
        self._counts[f"join_{outcome.reason or outcome.result}"] += 1
        phy_payload, heard_by = None, eui_text(transmission.first.station)
        if outcome.result is Result.ACCEPTED:
            [phy_payload] = built
            self._keep_accept(device_id, frame, phy_payload)
            self._log.info("lora.joined", device_id=device_id, station=heard_by)
        elif outcome.reason is Reason.DEV_NONCE_USED:
            phy_payload = self._again(device_id, frame)
        elif outcome.reason is Reason.JOIN_MIC_FAILED:
            self._log.warning("lora.join_mic_failed", device_id=device_id, station=heard_by)
        if phy_payload is not None:
            windows = windows_of(self._region, JOIN_ACCEPT_DELAY_S)
            answer = self._downlinks.answer(frame.dev_eui, phy_payload, transmission, windows)
            self._spawn(answer, "lora-accept")

    def _accept(self, stored: StoredDevice, frame: JoinRequestFrame) -> tuple[SessionState, bytes]:
        profile, settings = stored.profile.lora, self._settings
        assert profile is not None
        is_1_1 = profile.mac_version is MacVersion.V1_1
        # JoinNonce counts from 1.0.4 on, and never comes twice before.
        nonce = stored.session.generation + 1
        fields = JoinAcceptFields(
            app_nonce=nonce,
            net_id=settings.net_id,
            dev_addr=dev_addr_of(settings.net_id, secrets.randbits(32)),
            dl_settings=dl_settings(rx1_dr_offset=0, rx2_dr=self._region.rx2_dr, opt_neg=is_1_1),
            rx_delay=settings.rx_delay_s,
            cf_list=self._cf_list(profile.mac_version),
        )
        app_key = bytes.fromhex(profile.app_key)
        nwk_key = bytes.fromhex(profile.nwk_key) if is_1_1 else app_key
        keys = crypto.JoinKeys(app_key, nwk_key, frame.join_eui, frame.dev_eui, frame.dev_nonce)
        state = SessionState(
            session=secrets.token_hex(8),
            address=RADIO_ADDRESS + dev_addr_text(fields.dev_addr),
            lora=session.session_of(keys, fields, rx_delay=settings.rx_delay_s),
        )
        mhdr = mhdr_of(MType.JOIN_ACCEPT)
        mic = crypto.join_accept_mic(keys, mhdr, fields)
        sealed = crypto.seal_accept(nwk_key, fields.build(), mic)
        return state, JoinAcceptFrame(mhdr=mhdr, encrypted=sealed).build()

    def _cf_list(self, version: MacVersion) -> bytes:
        region = self._region
        if not isinstance(region, FixedRegion):
            return frequency_cf_list(region.more_channels_hz)
        # Masks came with 1.0.3; older devices know no such list.
        return mask_cf_list(region.channels) if version >= MacVersion.V1_0_3 else b""

    def _keep_accept(self, device_id: str, frame: JoinRequestFrame, phy_payload: bytes) -> None:
        device = self._devices.known(device_id)
        if device is not None and device.stored is not None:
            self._accepted[device_id] = _Accepted(
                mic=frame.mic, session=device.session.session, phy_payload=phy_payload
            )
            if len(self._accepted) > KEPT_MAX:
                self._accepted.popitem(last=False)

    def _again(self, device_id: str, frame: JoinRequestFrame) -> bytes | None:
        """Return the accept that a device has not heard, None = its nonce is used."""
        device, accepted = self._devices.known(device_id), self._accepted.get(device_id)
        if device is None or device.stored is None or not _is_authentic(device.stored, frame):
            return None
        is_pending = (
            accepted is not None
            and accepted.mic == frame.mic
            and accepted.session == device.session.session
            and not device.heard
        )
        if accepted is not None and is_pending and self._settings.join_resend:
            self._counts["join_resent"] += 1
            return accepted.phy_payload
        self._log.warning(
            "lora.nonce_used",
            device_id=device_id,
            dev_nonce=frame.dev_nonce,
            hint="a device that begins its nonces again needs `edgehub lora device forget-nonces`; "
            "one that has not heard its answer needs lora.join_resend",
        )
        return None


def _check_join_eui(stored: StoredDevice, frame: JoinRequestFrame) -> None:
    profile, join_eui = stored.profile.lora, eui_text(frame.join_eui)
    assert profile is not None, "its MIC was checked"
    if profile.join_eui not in ("", join_eui):
        raise DeviceUnknownError(
            stored.profile.device_id, f"it is registered with another JoinEUI, not {join_eui}"
        )


def _is_authentic(stored: StoredDevice, frame: JoinRequestFrame) -> bool:
    profile = stored.profile.lora
    if profile is None or not profile.app_key:
        return False
    is_1_1 = profile.mac_version is MacVersion.V1_1
    key = bytes.fromhex(profile.nwk_key if is_1_1 else profile.app_key)
    return crypto.is_mic(crypto.request_mic(key, frame.signed_part()), frame.mic)
