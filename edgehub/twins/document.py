"""The twin of a device or module: what is desired of it, what it reports, and tags.

Pure functions and values. Invariants: a `ClientTwin` is never changed and holds no null; a change
that breaks a limit changes nothing; a version rises by one with each change of its section.

Source: Azure IoT Hub, "Understand and use device twins" (limits, sizes, permitted characters); RFC
7396, JSON Merge Patch.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import orjson
from msgspec import Struct, field, json
from msgspec.structs import replace

from edgehub.errors import EdgeHubError

Json = dict[str, Any]

SECTION_BYTES_MAX: Final = 32_768
"""Of desired and of reported properties, as `size_of` counts them."""

TAGS_BYTES_MAX: Final = 8_192
DEPTH_MAX: Final = 10
NAME_BYTES_MAX: Final = 1_024
TEXT_BYTES_MAX: Final = 4_096
WHOLE_MAX: Final = 2**52
PATCH_BYTES_MAX: Final = 4 * SECTION_BYTES_MAX
"""A longer text is not even parsed; what fits the limits may be written with many spaces."""

FIRST_VERSION: Final = 1
REPORTED_AT: Final = "$reportedAt"
"""Member of the reported properties between hubs: `ClientTwin.reported_at_ms`."""

_NUMBER_BYTES: Final = 8
_FLAG_BYTES: Final = 4
_BAD_IN_NAME: Final = re.compile(r"[\x00-\x20\x7f-\x9f.$#]").search


class TwinError(EdgeHubError):
    """A change of a twin is refused; the text says what is wrong and where.

    Attributes:
        status: As IoT Hub answers it: 400, 409, 413 or 429.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class TwinOwnedError(TwinError):
    """The peer upstream says what is desired of a client."""

    def __init__(self, client_id: str) -> None:
        super().__init__(409, f"what is desired of {client_id} is set at the peer upstream")


class TwinElsewhereError(TwinError):
    """Another hub owns the device of a client."""

    def __init__(self, client_id: str, owner: str) -> None:
        super().__init__(409, f"{client_id} is with the hub {owner}, which has its twin")


class ClientTwin(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One twin.

    Attributes:
        desired: What is desired of the client.
        desired_version: Of `desired`.
        reported: What the client reports.
        reported_version: Of `reported`.
        tags: What operators note; the client never sees them.
        synced: Reported properties as the peer upstream has them, None = it has `reported`.
        peer_version: Version of the reported properties as the peer has them, None = not known.
        reported_at_ms: UTC of the newest report in `reported`, None = not known.
    """

    desired: Json = field(default_factory=dict)
    desired_version: int = FIRST_VERSION
    reported: Json = field(default_factory=dict)
    reported_version: int = FIRST_VERSION
    tags: Json = field(default_factory=dict)
    synced: Json | None = None
    peer_version: int | None = None
    reported_at_ms: int | None = None

    def for_client(self, *, of_hub: bool = False) -> bytes:
        """Return the document that its client reads, for a hub with the time of the last report."""
        reported = {**self.reported, "$version": self.reported_version}
        if of_hub and self.reported_at_ms is not None:
            reported[REPORTED_AT] = self.reported_at_ms
        desired = {**self.desired, "$version": self.desired_version}
        return write_json({"desired": desired, "reported": reported})

    def report(self, patch: Json, at_ms: int | None = None) -> ClientTwin:
        """Merge a patch into the reported properties.

        Args:
            patch: See `merged`.
            at_ms: UTC at which the client reported it, None = not known.

        Raises:
            TwinError: They would be too large.
        """
        reported = merged(self.reported, patch)
        check_size(reported, "reported", SECTION_BYTES_MAX)
        synced = self.reported if self.synced is None else self.synced
        if at_ms is not None and self.reported_at_ms is not None:
            at_ms = max(at_ms, self.reported_at_ms)
        return replace(
            self,
            reported=reported,
            reported_version=self.reported_version + 1,
            synced=None if is_same(synced, reported) else synced,
            reported_at_ms=at_ms,
        )

    def desire(self, patch: Json, *, version: int | None = None) -> ClientTwin:
        """Merge a patch into the desired properties.

        Args:
            patch: See `merged`.
            version: Of the outcome, None = the next one.

        Raises:
            TwinError: They would be too large.
        """
        return self.with_desired(merged(self.desired, patch), version)

    def with_desired(self, desired: Json, version: int | None = None) -> ClientTwin:
        """Replace the desired properties.

        Raises:
            TwinError: They are too large.
        """
        check_size(desired, "desired", SECTION_BYTES_MAX)
        number = self.desired_version + 1 if version is None else version
        return replace(self, desired=desired, desired_version=number)

    def tag(self, patch: Json) -> ClientTwin:
        """Merge a patch into the tags.

        Raises:
            TwinError: They would be too large.
        """
        tags = merged(self.tags, patch)
        check_size(tags, "tags", TAGS_BYTES_MAX)
        return replace(self, tags=tags)

    def sent(self, reported: Json, version: int | None) -> ClientTwin:
        """Record that the peer upstream has these reported properties, in this version."""
        synced = None if is_same(reported, self.reported) else reported
        return replace(self, synced=synced, peer_version=version)

    @property
    def versions(self) -> str:
        """Return both versions, as a hub names them to another one."""
        return f"{self.desired_version},{self.reported_version}"

    @property
    def peer_versions(self) -> str | None:
        """Return both versions as the peer upstream has them, None = not known."""
        known = self.peer_version
        return None if known is None else f"{self.desired_version},{known}"

    def unsent(self) -> Json:
        """Return the patch that brings the peer's reported properties up to date."""
        return {} if self.synced is None else difference(self.synced, self.reported)

    def stored(self) -> bytes:
        """Return it as it is stored."""
        return json.encode(self)

    @classmethod
    def restored(cls, stored: bytes) -> ClientTwin:
        """Read what `stored` wrote."""
        return json.decode(stored, type=cls)


def parse_patch(text: bytes) -> Json:
    """Parse and check a merge patch.

    Raises:
        TwinError: It is no JSON object, or breaks a limit.
    """
    if len(text) > PATCH_BYTES_MAX:
        raise TwinError(413, f"{len(text)} bytes, of at most {PATCH_BYTES_MAX}")
    try:
        patch = orjson.loads(text)
    except ValueError as error:
        raise TwinError(400, f"not JSON: {error}") from None
    return check_patch(patch)


def check_patch(patch: Any) -> Json:
    """Check a parsed merge patch and return it.

    Raises:
        TwinError: It is no object, or breaks a limit.
    """
    if not isinstance(patch, dict):
        raise TwinError(400, "properties or tags are not a JSON object")
    _check(patch, "", 0, in_array=False)
    return patch


def check_size(section: Json, name: str, limit: int) -> None:
    """Check the size of a whole section.

    Raises:
        TwinError: It is too large.
    """
    size = size_of(section)
    if size > limit:
        raise TwinError(413, f"{name} would have {size} bytes, of at most {limit}")


def size_of(value: Any) -> int:
    """Return the bytes that a value counts: names and texts in UTF-8, 8 a number, 4 a flag."""
    if isinstance(value, dict):
        return sum(len(name.encode()) + size_of(member) for name, member in value.items())
    if isinstance(value, list):
        return sum(map(size_of, value))
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bool):
        return _FLAG_BYTES
    return 0 if value is None else _NUMBER_BYTES


def merged(target: Any, patch: Json) -> Json:
    """Return what a merge patch makes of a value; null removes a member."""
    outcome: Json = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            outcome.pop(name, None)
        elif isinstance(value, dict):
            outcome[name] = merged(outcome.get(name), value)
        else:
            outcome[name] = value
    return outcome


def difference(before: Json, after: Json) -> Json:
    """Return the merge patch that makes `after` of `before`; neither holds a null."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        known = before.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            change = difference(known, value)
            if change:
                patch[name] = change
        elif not is_same(known, value):
            patch[name] = value
    return patch


def without(patch: Json, other: Json) -> Json:
    """Return what of a merge patch changes nothing that another one changes."""
    rest: Json = {}
    for name, value in patch.items():
        if name not in other:
            rest[name] = value
        elif isinstance(value, dict) and isinstance(other[name], dict):
            part = without(value, other[name])
            if part:
                rest[name] = part
    return rest


def piece_of(patch: Json, bytes_max: int, *, at_least_one: bool = True) -> Json:
    """Return as much of a merge patch as counts so many bytes, and at least one of its leaves.

    Merged one after the other, the pieces are the patch.
    """
    piece: Json = {}
    left = bytes_max
    for name, value in patch.items():
        size = len(name.encode()) + size_of(value)
        if size <= left:
            piece[name] = value
            left -= size
            continue
        must = at_least_one and not piece
        if isinstance(value, dict) and value:
            part = piece_of(value, left - len(name.encode()), at_least_one=must)
            if part:
                piece[name] = part
        elif must:
            piece[name] = value
        break
    return piece


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are one JSON value; in Python 1, 1.0 and True are equal."""
    return one == other and _sorted_json(one) == _sorted_json(other)


def write_json(value: Any) -> bytes:
    """Return a value as compact JSON."""
    return orjson.dumps(value)


def _sorted_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _check(value: Any, path: str, depth: int, *, in_array: bool) -> None:
    if not isinstance(value, dict | list):
        _check_leaf(value, path, in_array=in_array)
        return
    if depth > DEPTH_MAX:
        raise TwinError(400, f"{_shown(path)}: nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, list):
        for member in value:
            _check(member, path, depth + 1, in_array=True)
        return
    for name, member in value.items():
        _check_name(name, path)
        _check(member, f"{path}.{name}" if path else name, depth + 1, in_array=in_array)


def _check_leaf(value: Any, path: str, *, in_array: bool) -> None:
    if value is None:
        if in_array:
            raise TwinError(400, f"{_shown(path)}: null inside of an array")
    elif isinstance(value, str):
        if _bytes_of(value, path) > TEXT_BYTES_MAX:
            raise TwinError(400, f"{_shown(path)}: a text of more than {TEXT_BYTES_MAX} bytes")
    elif not (math.isfinite(value) and (isinstance(value, float) or abs(value) <= WHOLE_MAX)):
        raise TwinError(400, f"{_shown(path)}: a number beyond {WHOLE_MAX}")


def _check_name(name: str, path: str) -> None:
    found = _BAD_IN_NAME(name)
    if found:
        raise TwinError(
            400,
            f"{_shown(path or name)}: {found.group()!a} in a name"
            "; write names without control characters, spaces, . $ and #",
        )
    if not name or _bytes_of(name, path) > NAME_BYTES_MAX:
        raise TwinError(400, f"{_shown(path or name)}: a name of 0 or over {NAME_BYTES_MAX} bytes")


def _bytes_of(text: str, path: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise TwinError(400, f"{_shown(path)}: half of a surrogate pair") from None


def _shown(path: str) -> str:
    # Text of a client stays short and printable.
    return ascii(path[:80])
