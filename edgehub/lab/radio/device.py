"""A simulated LoRaWAN device, 1.0 or 1.1: its side of joins, frames and windows.

Owns keys and counters as a device has them. Invariant: an answer is taken only with a right MIC and
a counter that is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from edgehub.lora import crypto
from edgehub.lora.counters import full_counter
from edgehub.lora.frames import (
    ACK,
    ADR,
    DataFrame,
    FrameError,
    JoinAcceptFields,
    JoinAcceptFrame,
    JoinRequestFrame,
    MType,
    mhdr_of,
    parse_frame,
)
from edgehub.lora.regions import RX2_AFTER_S
from edgehub.lora.session import UplinkRate, build_frame, frame_mic, open_frame, session_of

if TYPE_CHECKING:
    from edgehub.lora.device import LorawanSession
    from edgehub.lora.mac_commands import MacCommand

DATA_RATE: Final = 5
FREQUENCY_HZ: Final = 868_100_000
_RATE: Final = UplinkRate(DATA_RATE, 0)


class ReceivedDownlink(Struct, frozen=True, kw_only=True):
    """An answer as its device reads it.

    Attributes:
        frame: With its payload and MAC commands as they were encrypted.
        payload: Plain payload of the application.
        commands: MAC commands.
    """

    frame: DataFrame
    payload: bytes
    commands: list[MacCommand]


class SimulatedLorawanDevice:
    """One device.

    Args:
        dev_eui: Its id.
        app_key: Root key of a device that joins.
        nwk_key: Second root key of one of 1.1.
        join_eui: Whom it asks for its joins.

    Attributes:
        dev_eui: The same.
        accept: What its last join was answered, None = it has not joined.
        f_cnt: Counter of its next frame.
        f_cnt_down: Counter of the last answer, -1 = there was none.
        dev_nonce: Of its next join.
    """

    def __init__(
        self, dev_eui: int, app_key: bytes, *, nwk_key: bytes | None = None, join_eui: int = 0
    ) -> None:
        self.dev_eui = dev_eui
        self._keys = crypto.JoinKeys(app_key, nwk_key or app_key, join_eui, dev_eui, 0)
        self._session: LorawanSession | None = None
        self._dev_addr = 0
        self._acknowledges = False
        self._confirmed_f_cnt = 0
        self.accept: JoinAcceptFields | None = None
        self.f_cnt = 0
        self.f_cnt_down = -1
        self.dev_nonce = 1

    @property
    def has_session(self) -> bool:
        """Return whether it may send data."""
        return self._session is not None

    @property
    def windows_s(self) -> float:
        """Return the seconds from a frame of it until its last window begins."""
        return RX2_AFTER_S + ((self.accept.rx_delay if self.accept else 0) or 1)

    def personalise(self, dev_addr: int, session: LorawanSession) -> None:
        """Begin a session without a join (ABP)."""
        self._dev_addr = dev_addr
        self._session = session
        self.f_cnt, self.f_cnt_down = 0, -1

    def join_request(self) -> bytes:
        """Return its next join request."""
        self._keys = keys = self._keys._replace(dev_nonce=self.dev_nonce)
        self.dev_nonce += 1
        frame = JoinRequestFrame(
            join_eui=keys.join_eui, dev_eui=self.dev_eui, dev_nonce=keys.dev_nonce
        )
        mic = crypto.request_mic(keys.nwk_key, frame.signed_part())
        return replace(frame, mic=mic).build()

    def uplink(
        self,
        payload: bytes,
        *,
        f_port: int | None = 1,
        confirmed: bool = False,
        commands: tuple[MacCommand, ...] = (),
        adr: bool = False,
    ) -> bytes:
        """Return its next data frame; to repeat one, send the same bytes again."""
        assert self._session is not None, "it has not joined"
        f_cnt, self.f_cnt = self.f_cnt, self.f_cnt + 1
        kind = MType.CONFIRMED_DATA_UP if confirmed else MType.UNCONFIRMED_DATA_UP
        flags = (ACK if self._acknowledges else 0) | (ADR if adr else 0)
        self._acknowledges = False
        if confirmed:
            self._confirmed_f_cnt = f_cnt
        frame = DataFrame(
            mhdr=mhdr_of(kind),
            dev_addr=self._dev_addr,
            f_ctrl=flags,
            f_cnt=f_cnt & 0xFFFF,
            f_opts=b"".join(command.build() for command in commands),
            f_port=f_port,
            frm_payload=payload,
        )
        return build_frame(self._session, frame, f_cnt, _RATE, conf_f_cnt=self.f_cnt_down & 0xFFFF)

    def receive(self, phy_payload: bytes) -> ReceivedDownlink | JoinAcceptFields:
        """Take an answer.

        Raises:
            FrameError: It is none for this device.
        """
        frame, session = parse_frame(phy_payload), self._session
        if isinstance(frame, JoinAcceptFrame):
            return self._joined(frame)
        if not isinstance(frame, DataFrame) or session is None or frame.dev_addr != self._dev_addr:
            raise FrameError("it is no answer to this device")
        f_cnt = full_counter(frame.f_cnt, self.f_cnt_down + 1)
        mic = frame_mic(session, frame, f_cnt, conf_f_cnt=self._confirmed_f_cnt)
        if not crypto.is_mic(mic, frame.mic):
            raise FrameError("its MIC is wrong, or its counter is not new")
        self.f_cnt_down = f_cnt
        self._acknowledges = frame.is_confirmed
        plain = open_frame(session, frame, f_cnt)
        return ReceivedDownlink(frame=frame, payload=plain.payload, commands=plain.commands)

    def _joined(self, frame: JoinAcceptFrame) -> JoinAcceptFields:
        fields, mic = crypto.open_accept(self._keys.nwk_key, frame.encrypted)
        if not crypto.is_mic(crypto.join_accept_mic(self._keys, frame.mhdr, fields), mic):
            raise FrameError("its MIC is wrong")
        session = session_of(self._keys, fields, rx_delay=fields.rx_delay or 1)
        self.personalise(fields.dev_addr, session)
        self.accept = fields
        return fields
