"""Events: one SmartREST line where that is enough, JSON otherwise.

Pure. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.entities import smartrest
from edgehub.entities.documents import optional_text, read_object, write_json
from edgehub.entities.timestamps import write_time

if TYPE_CHECKING:
    from edgehub.entities.entity import Entity

DEFAULT_TYPE: Final = "ThinEdgeEvent"
CREATE: Final = "400"
_OWN: Final = frozenset({"type", "text", "time", "externalSource"})


class EventMessage:
    """An event as the cloud will see it.

    Attributes:
        type: Its type.
        text: Its text.
        time: When it happened.
        extras: All other members.
    """

    def __init__(self, entity: Entity, type_name: str, payload: bytes, now_ms: int) -> None:
        """Read an event message; an empty one has only its type.

        Raises:
            MappingError: It is no JSON object, or its text or time is none.
        """
        document: dict[str, Any] = read_object(payload) if payload else {}
        own_type = document.get("type")
        if not isinstance(own_type, str) or not own_type:
            own_type = type_name or DEFAULT_TYPE
        self.type = own_type
        text = optional_text(document, "text")
        self.text = self.type if text is None else text
        self.time = write_time(document.get("time"), now_ms)
        self.extras = {key: value for key, value in document.items() if key not in _OWN}
        self._source = entity.source

    @property
    def fits_a_line(self) -> bool:
        """Return whether a line is enough: an event of the main device without extras."""
        return not self.extras and self._source is None

    def line(self) -> bytes:
        """Write the SmartREST line."""
        head = smartrest.line(CREATE, self.type).decode()
        return f"{head},{smartrest.quoted(self.text)},{self.time}".encode()

    def document(self) -> bytes:
        """Write the JSON document."""
        event = {"type": self.type, "text": self.text, "time": self.time, **self.extras}
        if self._source is not None:
            event["externalSource"] = self._source
        return write_json(event)
