"""Arguments of operations, declared in few words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.devices.ids import ID_RULE, is_device_id
from edgehub.lora.identifiers import eui_text, parse_eui
from edgehub.operations.operation import Argument, ArgumentError, ArgumentKind

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_MAX: Final = 1000

text = partial(Argument, kind=ArgumentKind.TEXT)
whole = partial(Argument, kind=ArgumentKind.WHOLE)
seconds = partial(Argument, kind=ArgumentKind.SECONDS)
tenant = partial(Argument, kind=ArgumentKind.TENANT)
flag = partial(Argument, kind=ArgumentKind.FLAG, default=False)
texts = partial(Argument, kind=ArgumentKind.TEXTS)
wholes = partial(Argument, kind=ArgumentKind.WHOLES)
document = partial(Argument, kind=ArgumentKind.JSON)

DEVICE: Final = text("device_id", "Id of the device.", required=True)
CLIENT: Final = (DEVICE, text("module_id", "Id of its module; absent = the device itself."))
DEV_EUI: Final = text("dev_eui", "Its DevEUI, 16 hex digits.", required=True)
LIMIT: Final = whole("limit", "Most of them.", default=100, maximum=PAGE_MAX)


def paged(name: str) -> tuple[Argument, Argument]:
    """Return the arguments of a list that is given a page at a time, sorted by `name`."""
    return text("after", f"{name} of the last one before."), LIMIT


def page_of(
    names: Iterable[str], limit: int, after: str | None = None
) -> tuple[list[str], str | None]:
    """Return the names on a page, sorted, and `after` of the next page; None = it is the last."""
    later = sorted(name for name in names if name > (after or ""))
    return later[:limit], later[limit - 1] if 0 < limit < len(later) else None


def client_of(device_id: str, module_id: str | None = None) -> str:
    """Return the client id of a device or module.

    Raises:
        ArgumentError: It can be none.
    """
    for name, value in (("device_id", device_id), ("module_id", module_id)):
        if value is not None and not is_device_id(value):
            raise ArgumentError(f"`{name}`: {value!a} is no id; want {ID_RULE}")
    return device_id if module_id is None else f"{device_id}/{module_id}"


def dev_eui_of(given: str) -> str:
    """Return a DevEUI as the registry has it.

    Raises:
        ArgumentError: It is none.
    """
    try:
        return eui_text(parse_eui(given))
    except ValueError as error:
        raise ArgumentError(f"`dev_eui`: {error}") from error
