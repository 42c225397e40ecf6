"""Operations on LoRaWAN stations, and on the radio of devices.

Owns nothing; reads stations, and has devices asked by the head. A hub without stations has none to
show, and refuses the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.lora.frames import FrameError
from edgehub.lora.mac_commands import MacCommand
from edgehub.operations.arguments import DEV_EUI, dev_eui_of, document, text
from edgehub.operations.operation import ArgumentError, Operation

if TYPE_CHECKING:
    from edgehub.heads.lora.head import LoraHead

ASKABLE: Final = (
    "DevStatusReq",
    "DutyCycleReq",
    "RXParamSetupReq",
    "RXTimingSetupReq",
    "NewChannelReq",
    "DlChannelReq",
    "TxParamSetupReq",
    "ADRParamSetupReq",
    "RejoinParamSetupReq",
)
"""Commands that an operator may have sent; LinkADRReq is the hub's own."""


log = structlog.get_logger(__name__)


class LorawanRadioOperations:
    """Operations on stations and on the radio of devices.

    Args:
        head: None = the hub has no stations.
    """

    __slots__ = ("_head",)

    def __init__(self, head: LoraHead | None) -> None:
        self._head = head

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="lora station list",
                about="List LoRaWAN stations that may connect.",
                handler=self._list,
                result="edgehub.operations.results.lora:LorawanStationsDocument",
            ),
            Operation(
                name="lora device ask",
                about="Ask a LoRaWAN device by a MAC command, with its next answers.",
                handler=self._ask,
                result="edgehub.operations.results.lora:LorawanAnswers",
                arguments=(
                    DEV_EUI,
                    text("request", "Its name in LoRaWAN.", required=True, choices=ASKABLE),
                    document("values", "an object of whole numbers: the command's members"),
                ),
                changes=True,
            ),
            Operation(
                name="lora device answers",
                about="Show what a LoRaWAN device was asked and what it has answered.",
                handler=self._answers,
                result="edgehub.operations.results.lora:LorawanAnswers",
                arguments=(DEV_EUI,),
            ),
        ]

    async def _list(self) -> dict[str, Any]:
        stations = None if self._head is None else self._head.stations
        return {
            "stations": [] if stations is None else list(map(stations.document, stations.all()))
        }

    async def _ask(self, *, dev_eui: str, request: str, values: Any = None) -> dict[str, Any]:
        dev_eui, values = dev_eui_of(dev_eui), values or {}
        if not isinstance(values, dict) or any(type(each) is not int for each in values.values()):
            raise ArgumentError("`values`: want an object of whole numbers")
        command = MacCommand(name=request, values=values)
        try:
            found = await self._running().server.ask(dev_eui, command)
        except FrameError as error:
            raise ArgumentError(str(error)) from error
        log.info("lora.device_asked", device_id=dev_eui, request=command.name)
        return {"dev_eui": dev_eui, **found}

    async def _answers(self, *, dev_eui: str) -> dict[str, Any]:
        dev_eui = dev_eui_of(dev_eui)
        return {"dev_eui": dev_eui, **self._running().server.answers_of(dev_eui)}

    def _running(self) -> LoraHead:
        if self._head is None:
            raise ArgumentError("the hub has no LoRaWAN stations; set lora.port and lora.stations")
        return self._head
