"""Operations from the cloud, and the command for each.

Owns the rules; commands are kept by `Commands`. Invariant: an operation that is
delivered twice is carried out once, and one that cannot be read is reported as failed, not left
hanging. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from edgehub.entities.documents import optional_text, read_json
from edgehub.entities.faults import MappingError
from edgehub.entities.software import read_update
from edgehub.entities.timestamps import read_rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.entities.commands import Commands
    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.effects import Instant
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.registry import EntityRegistry

DEFAULT_TYPE: Final = "default"
FILES: Final = "/te/v1/files"
OPERATIONS_MAX: Final = 500
"""Operations of one notification; the cloud's packets hold fewer."""

_UNSAFE_ID: Final = re.compile(r"[^A-Za-z0-9_.:-]")


class CloudOperations:
    """Handles notifications of operations."""

    def __init__(
        self,
        options: MapperOptions,
        effects: EffectCollector,
        registry: EntityRegistry,
        commands: Commands,
    ) -> None:
        self._options = options
        self._effects = effects
        self._registry = registry
        self._commands = commands
        base = options.mapper.file_transfer_url.rstrip("/")
        self._files = base if FILES in base else base + FILES
        self.ignored_total = 0
        custom = options.mapper.custom_operations
        self._readers: dict[str, tuple[str, Callable[[_Request], dict[str, Any]]]] = {
            "c8y_Restart": ("restart", _restart),
            "c8y_SoftwareUpdate": ("software_update", self._software_update),
            "c8y_LogfileRequest": ("log_upload", self._log_upload),
            "c8y_UploadConfigFile": ("config_snapshot", self._config_snapshot),
            "c8y_DownloadConfigFile": ("config_update", self._config_update),
            "c8y_Firmware": ("firmware_update", self._firmware_update),
            "c8y_DeviceProfile": ("device_profile", self._device_profile),
            **{fragment: (local, _custom) for local, fragment in custom.items()},
        }

    def handle(self, topic: str, payload: bytes, now: Instant) -> None:
        """Handle a notification: one operation, or several, one a line."""
        for count, text in enumerate(_split(payload)):
            if count == OPERATIONS_MAX:
                self._effects.error(topic, f"more than {OPERATIONS_MAX} operations in one message")
                return
            try:
                self._begin(read_json(text), now)
            except MappingError as error:
                self._effects.error(topic, str(error))

    def _begin(self, operation: Any, now: Instant) -> None:
        if not isinstance(operation, dict):
            raise MappingError("an operation must be a JSON object")
        number, external_id = _ids(operation)
        entity = self._registry.by_external_id(external_id)
        fragment = next((name for name in self._readers if name in operation), None)
        if entity is None or fragment is None:
            self.ignored_total += 1
            return
        local, reader = self._readers[fragment]
        command_id = self._commands.prefix + number
        known = self._commands.is_known(command_id, now)
        if known or local in self._options.mapper.disabled_operations:
            self.ignored_total += 1
            return
        request = _Request(entity, command_id, operation, operation[fragment])
        try:
            command = reader(request)
        except MappingError as error:
            self._commands.fail(entity, local, command_id, str(error), now)
            return
        self._commands.start(entity, local, command_id, command, now)

    def _software_update(self, request: _Request) -> dict[str, Any]:
        return {"updateList": read_update(request.fragment, self._reachable)}

    def _log_upload(self, request: _Request) -> dict[str, Any]:
        fragment = request.members()
        type_ = request.text("logFile")
        command: dict[str, Any] = {
            "tedgeUrl": self._file(request, "log_upload", type_),
            "type": type_,
            "dateFrom": read_rfc3339(request.text("dateFrom")),
            "dateTo": read_rfc3339(request.text("dateTo")),
            "lines": fragment.get("maximumLines"),
        }
        if not isinstance(command["lines"], int):
            raise MappingError("`maximumLines` must be a number")
        search = optional_text(fragment, "searchText")
        if search:
            command["searchText"] = search
        return command

    def _config_snapshot(self, request: _Request) -> dict[str, Any]:
        type_ = optional_text(request.members(), "type") or DEFAULT_TYPE
        return {"tedgeUrl": self._file(request, "config_snapshot", type_), "type": type_}

    def _config_update(self, request: _Request) -> dict[str, Any]:
        url = request.text("url")
        type_ = optional_text(request.members(), "type") or DEFAULT_TYPE
        return {"remoteUrl": self._reachable(url), "serverUrl": url, "type": type_}

    def _firmware_update(self, request: _Request) -> dict[str, Any]:
        url = request.text("url")
        return {
            "tedgeUrl": self._reachable(url),
            "remoteUrl": url,
            "name": request.text("name"),
            "version": request.text("version"),
        }

    def _device_profile(self, request: _Request) -> dict[str, Any]:
        profile = request.members()
        name = optional_text(request.operation, "profileName")
        if name is None:
            raise MappingError("the profile has no `profileName`")
        parts: list[dict[str, Any]] = []
        if profile.get("firmware") is not None:
            parts.append(_part("firmware_update", self._profile_firmware(request)))
        parts.extend(
            _part("config_update", self._profile_configuration(request.inner(item)))
            for item in _list(profile.get("configuration"))
        )
        if profile.get("software") is not None:
            modules = read_update(profile["software"], self._reachable)
            parts.append(_part("software_update", {"updateList": modules}))
        return {"name": name, "operations": parts}

    def _profile_firmware(self, request: _Request) -> dict[str, Any]:
        firmware = request.inner(request.members()["firmware"])
        url = self._reachable(firmware.text("url"))
        return {
            "name": firmware.text("name"),
            "version": firmware.text("version"),
            "remoteUrl": url,
        }

    def _profile_configuration(self, request: _Request) -> dict[str, Any]:
        return {"name": request.text("name"), **self._config_update(request)}

    def _file(self, request: _Request, operation: str, type_: str) -> str:
        name = f"{type_.replace('/', ':')}-{request.command_id}"
        return f"{self._files}/{request.entity.external_id}/{operation}/{name}"

    def _reachable(self, url: str) -> str:
        tenant = self._options.mapper.tenant_host
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return url
        if not tenant or parts.scheme not in {"http", "https"} or _domain(host) != _domain(tenant):
            return url
        query = f"?{parts.query}" if parts.query else ""
        return f"{self._options.mapper.proxy_url.rstrip('/')}{parts.path}{query}"


class _Request:
    """One operation.

    Attributes:
        entity: Its target.
        command_id: Id of the command that it becomes.
        operation: The whole operation.
        fragment: The member that describes it.
    """

    def __init__(
        self, entity: Entity, command_id: str, operation: dict[str, Any], fragment: Any
    ) -> None:
        self.entity = entity
        self.command_id = command_id
        self.operation = operation
        self.fragment = fragment

    def inner(self, fragment: Any) -> _Request:
        """Return the same operation with a part of it in place of the fragment."""
        return _Request(self.entity, self.command_id, self.operation, fragment)

    def members(self) -> dict[str, Any]:
        """Return the fragment as an object."""
        if not isinstance(self.fragment, dict):
            raise MappingError("the operation must be a JSON object")
        return self.fragment

    def text(self, key: str) -> str:
        """Return a member that must be a text and not empty."""
        value = optional_text(self.members(), key)
        if not value:
            raise MappingError(f"the operation lacks `{key}`")
        return value


def _domain(host: str) -> str:
    # A tenant has a name and an id, `acme.example.com` and `t123.example.com`.
    return host.lower().partition(".")[2] or host.lower()


def _list(value: Any) -> list[Any]:
    if value is None or isinstance(value, list):
        return value or []
    raise MappingError("`configuration` must be a list")


def _restart(_request: _Request) -> dict[str, Any]:
    return {}


def _custom(request: _Request) -> dict[str, Any]:
    """Return the members of the fragment without its state, which the hub keeps."""
    return {key: value for key, value in request.members().items() if key != "status"}


def _part(operation: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"operation": operation, "@skip": False, "payload": payload}


def _ids(operation: dict[str, Any]) -> tuple[str, str]:
    number = operation.get("id")
    if isinstance(number, int):
        number = str(number)
    source = operation.get("externalSource")
    external_id = source.get("externalId") if isinstance(source, dict) else None
    if not isinstance(number, str) or not number or _UNSAFE_ID.search(number):
        raise MappingError("the operation has no usable `id`")
    if not isinstance(external_id, str):
        raise MappingError(f"the operation {number} has no `externalSource.externalId`")
    return number, external_id


def _split(payload: bytes) -> Iterator[bytes]:
    try:
        read_json(payload)
    except MappingError:
        yield from [text for text in payload.split(b"\n") if text.strip()]
    else:
        yield payload
