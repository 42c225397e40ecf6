"""Where a manifest from above comes from: the gateway's own twin, or a topic of the peer upstream.

Owns what is desired by the topic. Invariant: a source knows what is desired from `begin` on, if
need be what was applied last.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from edgehub.local_message import ignore_result
from edgehub.twins.document import TwinError, difference

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.manifest_topic import ManifestUplink
    from edgehub.twins.document import Json
    from edgehub.twins.twins import ClientTwins

    Desired = tuple[Any, int]
    """A manifest as `parse_manifest` takes it, None = none is desired; and its version."""

PROPERTY: Final = "edgeHub"
VERSION: Final = "$version"
BYTES_MAX: Final = 2**20
"""Of the payload of a topic; what is longer is refused."""

log = structlog.get_logger(__name__)


class ManifestSource(Protocol):
    """What desires a manifest of the hub."""

    @property
    def name(self) -> str:
        """Return what it is, for messages."""

    @property
    def removal(self) -> str:
        """Return how nothing is desired by it, for messages."""

    def begin(self, stored: Desired | None) -> None:
        """Take the manifest that was applied last, None = there was none."""

    def desired(self) -> Desired:
        """Return what is desired."""

    def report(self, outcome: Json) -> None:
        """Report what became of it."""


class TwinManifest:
    """The gateway's own twin; implements `ManifestSource`.

    Args:
        twins: It is among them.
        hub_id: The gateway's own client id.
        is_module: Returns whether the twin is that of the module `$edgeHub`, whose desired
            properties as a whole are the manifest.
        changed: Called when it desires something else.
    """

    def __init__(
        self,
        twins: ClientTwins,
        hub_id: str,
        *,
        is_module: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._twins = twins
        self._hub_id = hub_id
        self._is_module = is_module
        self._changed = changed
        self.name = f"twin of {hub_id}"
        self.removal = "remove `edgeHub` from the desired properties"
        twins.desired_changed.append(self._desired_changed)

    def begin(self, stored: Desired | None) -> None:
        """Do nothing: twins are stored."""

    def desired(self) -> Desired:
        """Return the manifest in its desired properties."""
        twin = self._twins.get(self._hub_id)
        document = twin.desired or None if self._is_module() else twin.desired.get(PROPERTY)
        return document, twin.desired_version

    def report(self, outcome: Json) -> None:
        """Report as Edge Hub does, and only what has changed."""
        is_module = self._is_module()
        reported = self._twins.get(self._hub_id).reported
        before = reported if is_module else reported.get(PROPERTY)
        known = before if isinstance(before, dict) else {}
        patch = difference({name: known[name] for name in outcome if name in known}, outcome)
        if not patch:
            return
        patch = patch if is_module else {PROPERTY: patch}
        try:
            self._twins.report(self._hub_id, patch, ignore_result, at_ms=None)
        except TwinError as error:
            log.warning("hub.upstream_manifest_not_reported", reason=str(error))

    def _desired_changed(self, client_id: str, _patch: Json, _version: int) -> None:
        if client_id == self._hub_id:
            self._changed()


class TopicManifest:
    """A topic of the peer upstream; implements `ManifestSource`.

    Its payload is the text of a manifest; empty, or `null`: none is desired.

    Args:
        uplink: The way to it.
        changed: Called when it desires something else.
    """

    def __init__(self, uplink: ManifestUplink, *, changed: Callable[[], None]) -> None:
        self._uplink = uplink
        self._changed = changed
        self._desired: Desired = None, 0
        self.name = "topic of the peer upstream"
        self.removal = "remove manifest_topic from [upstream]"
        uplink.taken = self._taken

    def begin(self, stored: Desired | None) -> None:
        """Desire it until the topic says something else."""
        if stored is not None:
            self._desired = stored

    def desired(self) -> Desired:
        """Return what the topic had last."""
        return self._desired

    def report(self, outcome: Json) -> None:
        """Publish it on the topic for reports."""
        # In ASCII, as a fault may quote half a character of the text.
        self._uplink.report(json.dumps(outcome).encode())

    def _taken(self, body: bytes | None) -> None:
        # What is wrong with a text is found where it is parsed, and reported from there.
        text = "" if body is None else body[: BYTES_MAX + 1].decode("utf-8", "replace")
        if body is None or len(body) > BYTES_MAX:
            text = f"(longer than {BYTES_MAX} bytes)"
        try:
            document = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            self._desired = text, 0
        else:
            version = document.get(VERSION) if isinstance(document, dict) else None
            if not isinstance(version, int) or isinstance(version, bool):
                version = 0
            self._desired = None if document is None else text, version
        self._changed()
