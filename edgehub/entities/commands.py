"""Commands in progress, and the reports of their status to the cloud.

Owns the commands that came from the cloud: active ones for at most twelve hours, finished ones for
an hour, so that an operation that is delivered twice is carried out once.
Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert, json
from msgspec.structs import replace

from edgehub.entities import smartrest
from edgehub.entities.capabilities import SOFTWARE_LIST, SOFTWARE_UPDATE, cloud_names
from edgehub.entities.documents import optional_text, read_object, read_stored, write_json
from edgehub.entities.effects import OutputName
from edgehub.entities.faults import MappingError
from edgehub.entities.software import software_list_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from edgehub.entities.effect_collector import EffectCollector
    from edgehub.entities.effects import Instant
    from edgehub.entities.entity import Entity
    from edgehub.entities.options import MapperOptions
    from edgehub.entities.topics import EntityTopic, TopicScheme

ACTIVE_MS: Final = 12 * 3600 * 1000
FINISHED_MS: Final = 3600 * 1000
SWEEP_MS: Final = 3600 * 1000
COMMANDS_MAX: Final = 10_000
STATE_KEY: Final = "command/"
UNKNOWN_REASON: Final = "Unknown reason"
EXECUTING: Final = "executing"
SUCCESSFUL: Final = "successful"
FAILED: Final = "failed"
_FINAL: Final = frozenset({SUCCESSFUL, FAILED})
_BY_ID: Final = {EXECUTING: "504", FAILED: "505", SUCCESSFUL: "506"}
_BY_NAME: Final = {EXECUTING: "501", FAILED: "502", SUCCESSFUL: "503"}
_SET_CONFIGURATION: Final = "120"
_SET_PROFILE: Final = "121"


class Command(Struct, frozen=True, kw_only=True):
    """A command that the cloud knows of.

    Attributes:
        topic: Its local topic.
        status: The last one that was reported, empty = none.
        until_ms: Hub time until which it is remembered.
    """

    topic: str
    status: str
    until_ms: int


class Commands:
    """Commands in progress or just finished.

    Args:
        options: What can be set.
        effects: See `EffectCollector`.
        scheme: The local topics.
        stored: The mapper's state from the tables.
        set_twin: Stores a twin value and sends it to the cloud, see `Mapper`.
    """

    def __init__(
        self,
        options: MapperOptions,
        effects: EffectCollector,
        scheme: TopicScheme,
        stored: dict[str, bytes],
        *,
        set_twin: Callable[[Entity, str, Any], None],
    ) -> None:
        self._options = options
        self._names = cloud_names(options)
        self._effects = effects
        self._scheme = scheme
        self._set_twin = set_twin
        self.prefix = f"{options.mapper.topic_prefix}-mapper-"
        self._next_sweep_ms: int | None = None
        self._commands: dict[str, Command] = {}
        read = partial(read_stored, read=partial(convert, type=Command))
        for command_id, command in effects.below(STATE_KEY, stored, read):
            self._commands[command_id] = command
            self._next_sweep_ms = min(self._next_sweep_ms or command.until_ms, command.until_ms)

    def is_known(self, command_id: str, now: Instant) -> bool:
        """Return whether a command is active or has just finished."""
        command = self._commands.get(command_id)
        return command is not None and command.until_ms > now.hub_ms

    def start(
        self, entity: Entity, operation: str, command_id: str, command: dict[str, Any], now: Instant
    ) -> None:
        """Publish a command for an entity."""
        topic = self._scheme.topic(entity.topic_id, "cmd", operation, command_id)
        self._record(command_id, Command(topic=topic, status="", until_ms=now.hub_ms + ACTIVE_MS))
        self._effects.publish(topic, write_json({"status": "init", **command}), retain=True)

    def handle(self, topic: EntityTopic, entity: Entity, payload: bytes, now: Instant) -> None:
        """Handle the state of a command that its executor has published.

        Raises:
            MappingError: It cannot be read.
        """
        command_id = topic.command_id
        if not command_id.startswith(self.prefix) or not self._concerns_cloud(topic.name):
            return
        known = self._commands.get(command_id)
        if known is not None and known.until_ms <= now.hub_ms:
            known = None
        if not payload:
            if known is not None and known.status not in _FINAL:
                self._record(command_id, None)
            return
        if known is not None and known.status in _FINAL:
            # A broker with older data, or a late client, has published it again.
            self._effects.publish(topic.text, b"", retain=True)
            return
        command = read_object(payload)
        status = optional_text(command, "status") or ""
        if known is None:
            known = Command(topic=topic.text, status="", until_ms=now.hub_ms + ACTIVE_MS)
            self._record(command_id, known)
        if status == known.status or status not in _BY_ID:
            return
        try:
            self._report(topic, entity, command, status, now)
        except MappingError as error:
            self._effects.error(topic.text, str(error))
        lasts_ms = FINISHED_MS if status in _FINAL else ACTIVE_MS
        self._record(command_id, replace(known, status=status, until_ms=now.hub_ms + lasts_ms))
        if status in _FINAL:
            self._effects.publish(topic.text, b"", retain=True)

    def fail(
        self, entity: Entity, operation: str, command_id: str, reason: str, now: Instant
    ) -> None:
        """Report a command that cannot be begun as executing, then failed."""
        for status in (EXECUTING, FAILED):
            fields = [smartrest.reason(reason)] if status == FAILED else []
            self._line(entity, operation, command_id, status, *fields)
        topic = self._scheme.topic(entity.topic_id, "cmd", operation, command_id)
        until_ms = now.hub_ms + FINISHED_MS
        self._record(command_id, Command(topic=topic, status=FAILED, until_ms=until_ms))

    def request_software_list(self, entity: Entity, now: Instant) -> None:
        """Request the software list of a device after a change."""
        command_id = f"{self.prefix}{now.wall_ms}"
        topic = self._scheme.topic(entity.topic_id, "cmd", SOFTWARE_LIST, command_id)
        self._effects.publish(topic, b'{"status":"init"}', retain=True)

    def forget_unpublished(self, retained: Collection[str]) -> None:
        """Remove commands without a report or a retained message."""
        for command_id, command in list(self._commands.items()):
            if not command.status and command.topic not in retained:
                self._record(command_id, None)

    def forget(self, entity: Entity) -> list[str]:
        """Remove the commands of an entity that is removed.

        Returns:
            Topics of those that had not finished.
        """
        prefix = self._scheme.topic(entity.topic_id, "cmd", "")
        removed = [
            key for key, command in self._commands.items() if command.topic.startswith(prefix)
        ]
        topics = [
            self._commands[key].topic for key in removed if self._commands[key].status not in _FINAL
        ]
        for command_id in removed:
            self._record(command_id, None)
        return topics

    def next_due_ms(self) -> int | None:
        """Return the hub time of the next sweep, None = there is nothing to sweep."""
        return self._next_sweep_ms

    def sweep(self, now: Instant) -> None:
        """Forget what is too old, once an hour."""
        if self._next_sweep_ms is None or now.hub_ms < self._next_sweep_ms:
            return
        for command_id, command in list(self._commands.items()):
            if command.until_ms <= now.hub_ms:
                self._record(command_id, None)
        self._next_sweep_ms = now.hub_ms + SWEEP_MS if self._commands else None

    def _concerns_cloud(self, operation: str) -> bool:
        known = operation in self._names or operation == SOFTWARE_LIST
        return known and operation not in self._options.mapper.disabled_operations

    def _report(
        self,
        topic: EntityTopic,
        entity: Entity,
        command: dict[str, Any],
        status: str,
        now: Instant,
    ) -> None:
        operation, command_id = topic.name, topic.command_id
        if operation == SOFTWARE_LIST:
            if status == SUCCESSFUL and self._options.mapper.software_lists:
                self._send_software_list(entity, command)
            return
        if status == FAILED:
            reason = smartrest.reason(_failure(operation, command))
            self._line(entity, operation, command_id, FAILED, reason)
        else:
            try:
                before, after = _EXTRA_LINES.get((operation, status), _nothing)(command)
            except MappingError as error:
                self._line(entity, operation, command_id, FAILED, smartrest.reason(str(error)))
                return
            for line in before:
                self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)
            self._line(entity, operation, command_id, status, *self._result(topic, command, status))
            for line in after:
                self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)
        self._follow(entity, operation, command, status, now)

    def _result(self, topic: EntityTopic, command: dict[str, Any], status: str) -> list[str]:
        """Return the text of a successful operation of the user's own, if there is one."""
        result = command.get("result")
        is_own = topic.name in self._options.mapper.custom_operations
        if status != SUCCESSFUL or not is_own or not isinstance(result, str) or not result:
            return []
        return [smartrest.output(result)]

    def _follow(
        self, entity: Entity, operation: str, command: dict[str, Any], status: str, now: Instant
    ) -> None:
        """Carry out what follows from a finished command in addition to its report."""
        firmware = _firmware(operation, status, command)
        if firmware is not None:
            twin = self._scheme.topic(entity.topic_id, "twin", "firmware")
            self._effects.publish(twin, write_json(firmware), retain=True)
            self._set_twin(entity, "firmware", firmware)
        if status in _FINAL and operation == SOFTWARE_UPDATE:
            self.request_software_list(entity, now)

    def _line(
        self, entity: Entity, operation: str, command_id: str, status: str, *fields: str
    ) -> None:
        number = command_id[len(self.prefix) :]
        if self._options.mapper.use_operation_id and number.isascii() and number.isdigit():
            line = smartrest.line(_BY_ID[status], number, *fields)
        else:
            line = smartrest.line(_BY_NAME[status], self._names[operation], *fields)
        self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)

    def _send_software_list(self, entity: Entity, command: dict[str, Any]) -> None:
        for line in software_list_lines(command, self._effects.room(entity.topic)):
            self._effects.row(OutputName.OPERATIONS, entity.topic, line, entity)

    def _record(self, command_id: str, command: Command | None) -> None:
        if command is None:
            if self._commands.pop(command_id, None) is not None:
                self._effects.keep(STATE_KEY + command_id, None)
            return
        if len(self._commands) >= COMMANDS_MAX and command_id not in self._commands:
            self._record(next(iter(self._commands)), None)
        self._commands[command_id] = command
        if self._next_sweep_ms is None:
            self._next_sweep_ms = command.until_ms
        self._effects.keep(STATE_KEY + command_id, json.encode(command))


_Lines = tuple[list[bytes], list[bytes]]
"""Lines to the cloud before and after the status."""


def _failure(operation: str, command: dict[str, Any]) -> str:
    reason = optional_text(command, "reason")
    reason = UNKNOWN_REASON if reason is None else reason
    return f"Restart Failed: {reason}" if operation == "restart" else reason


def _nothing(_command: dict[str, Any]) -> _Lines:
    return [], []


def _configuration_set(command: dict[str, Any]) -> _Lines:
    return [_configuration(command, "")], []


def _profile_begun(_command: dict[str, Any]) -> _Lines:
    return [], [smartrest.line(_SET_PROFILE, "false")]


def _profile_done(command: dict[str, Any]) -> _Lines:
    lines = [
        _configuration(payload, optional_text(payload, "name") or "")
        for kind, payload in _profile_parts(command)
        if kind == "config_update"
    ]
    return [*lines, smartrest.line(_SET_PROFILE, "true")], []


def _configuration(command: dict[str, Any], name: str) -> bytes:
    type_ = optional_text(command, "type")
    url = optional_text(command, "serverUrl")
    if type_ is None or url is None:
        raise MappingError("the finished command lacks `type` or `serverUrl`")
    return smartrest.line(_SET_CONFIGURATION, type_, url, name)


def _profile_parts(command: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    parts = command.get("operations")
    found = []
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and not part.get("@skip"):
            kind, payload = part.get("operation"), part.get("payload")
            if isinstance(kind, str) and isinstance(payload, dict):
                found.append((kind, payload))
    return found


def _firmware(operation: str, status: str, command: dict[str, Any]) -> dict[str, Any] | None:
    """Return the twin value that a finished command makes, None = it makes none."""
    if status != SUCCESSFUL:
        return None
    if operation == "device_profile":
        parts = [payload for kind, payload in _profile_parts(command) if kind == "firmware_update"]
        command = parts[0] if parts else {}
    elif operation != "firmware_update":
        return None
    firmware = {"name": command.get("name"), "version": command.get("version")}
    if not all(isinstance(value, str) for value in firmware.values()):
        return None
    url = command.get("remoteUrl")
    return firmware if url is None else {**firmware, "url": url}


_EXTRA_LINES: Final[dict[tuple[str, str], Callable[[dict[str, Any]], _Lines]]] = {
    ("config_update", SUCCESSFUL): _configuration_set,
    ("device_profile", EXECUTING): _profile_begun,
    ("device_profile", SUCCESSFUL): _profile_done,
}
