"""Operations that entities declare, as the cloud knows them.

Owns the list of each entity; it outlives a restart, so that what is declared again is not sent
again. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.entities import smartrest
from edgehub.entities.documents import read_object, read_stored
from edgehub.entities.effects import OutputName
from edgehub.entities.faults import MappingError

if TYPE_CHECKING:
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions

CLOUD_OPERATIONS: Final = {
    "restart": "c8y_Restart",
    "software_update": "c8y_SoftwareUpdate",
    "log_upload": "c8y_LogfileRequest",
    "config_snapshot": "c8y_UploadConfigFile",
    "config_update": "c8y_DownloadConfigFile",
    "firmware_update": "c8y_Firmware",
    "device_profile": "c8y_DeviceProfile",
}
"""Name at the cloud by local name; settings may add others."""

SOFTWARE_LIST: Final = "software_list"
SOFTWARE_UPDATE: Final = "software_update"
DECLARE: Final = "114"
STATE_KEY: Final = "operations/"
_TYPES_CODE: Final = {"log_upload": "118", "config_snapshot": "119", "config_update": "119"}


class Capabilities:
    """The declared operations of each entity."""

    def __init__(
        self, options: MapperOptions, effects: EffectCollector, stored: dict[str, bytes]
    ) -> None:
        self._options = options
        self._names = cloud_names(options)
        self._effects = effects
        self._declared = dict(effects.below(STATE_KEY, stored, partial(read_stored, read=set[str])))
        if options.entities.clean_start:
            for external_id in [each for each in self._declared if each != options.device_id]:
                del self._declared[external_id]
                self._store(external_id, None)

    def declare(self, entity: Entity, operation: str, payload: bytes) -> bool:
        """Handle the declaration of one operation.

        Returns:
            Whether it is one that is sent to the cloud.

        Raises:
            MappingError: The declaration cannot be read.
        """
        if not payload or operation in self._options.mapper.disabled_operations:
            return False  # what was declared stays declared, as in the original
        if operation == SOFTWARE_LIST:
            self._declare_software_types(entity, payload)
            return True
        cloud_name = self._names.get(operation)
        if cloud_name is None:
            return False
        code = _TYPES_CODE.get(operation)
        types = [] if code is None else sorted(_types(payload))
        declared = self._declared.setdefault(entity.external_id, set())
        if cloud_name not in declared:
            declared.add(cloud_name)
            self._store(entity.external_id, declared)
            self.send(entity)
        if code is not None:
            line = smartrest.line(code, *(types or [""]))
            self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)
        return True

    def send(self, entity: Entity) -> None:
        """Send all operations of an entity to the cloud."""
        names = sorted(self._declared.get(entity.external_id, ()))
        line = smartrest.line(DECLARE, *names)
        self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)

    def has(self, entity: Entity) -> bool:
        """Return whether an entity has declared anything."""
        return bool(self._declared.get(entity.external_id))

    def forget(self, entity: Entity) -> list[str]:
        """Remove the operations of an entity that is removed.

        Returns:
            Local names of what it had declared.
        """
        declared = self._declared.pop(entity.external_id, None)
        if declared is None:
            return []
        self._store(entity.external_id, None)
        return [local for local, cloud in self._names.items() if cloud in declared]

    def _declare_software_types(self, entity: Entity, payload: bytes) -> None:
        if self._options.mapper.software_types:
            self._effects.twin(entity, "c8y_SupportedSoftwareTypes", _types(payload))

    def _store(self, external_id: str, declared: set[str] | None) -> None:
        value = None if declared is None else orjson.dumps(sorted(declared))
        self._effects.keep(STATE_KEY + external_id, value)


def cloud_names(options: MapperOptions) -> dict[str, str]:
    """Return the name at the cloud of every operation, by local name."""
    return {**CLOUD_OPERATIONS, **options.mapper.custom_operations}


def _types(payload: bytes) -> list[str]:
    types: Any = read_object(payload).get("types")
    if types is None:
        raise MappingError("`types` is missing: a list of texts")
    if not isinstance(types, list) or not all(isinstance(name, str) for name in types):
        raise MappingError("`types` must be a list of texts")
    return types
