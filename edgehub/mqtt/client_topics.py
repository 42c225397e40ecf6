"""Topics of twins and direct methods: those of a client itself, and those between hubs.

Pure functions and their values. A client uses `$iothub/...` for itself alone. A hub that speaks for
others uses `$edge/clients/<device>[/<module>]/...` with the same last levels, and one subscription
for all of them. Invariant: the path of a parsed topic is one of a closed set.

Source: the MQTT dialect of Azure IoT Hub, "Retrieving a device twin's properties", "Update device
twin's reported properties", "Receiving desired properties update notifications" and "Respond to a
direct method".
"""

from __future__ import annotations

from typing import Final, NamedTuple

OWN: Final = "$iothub/"
OF_CLIENTS: Final = "$edge/clients/"

OWN_FILTERS: Final = (
    f"{OWN}twin/res/#",
    f"{OWN}twin/PATCH/properties/desired/#",
    f"{OWN}methods/POST/#",
)
"""What a client subscribes to for itself."""

CLIENTS_FILTER: Final = f"{OF_CLIENTS}+/+/+/#"
"""The one subscription of a hub; the topics that say who is connected are shorter."""

GET_TWIN: Final = "twin/GET"
REPORT: Final = "twin/PATCH/properties/reported"
DESIRED: Final = "twin/PATCH/properties/desired"
TWIN_RESULT: Final = "twin/res"
METHOD_CALL: Final = "methods/POST"
METHOD_RESULT: Final = "methods/res"

_WITH_NAME: Final = frozenset({TWIN_RESULT, METHOD_CALL, METHOD_RESULT})
_PATHS: Final = frozenset({GET_TWIN, REPORT, DESIRED, *_WITH_NAME})
_FAMILIES: Final = frozenset({"twin", "methods"})


class ClientPath(NamedTuple):
    """A parsed topic.

    Attributes:
        client: `<device>` or `<device>/<module>` that it is about, empty = its publisher.
        path: One of the constants above.
        name: Status of a result, or name of a method; empty = the path has none.
        parameters: Those of its last level, `$rid`, `$version`, `$at` and `$failed`.
    """

    client: str
    path: str
    name: str
    parameters: dict[str, str]


def parse_client_topic(topic: str) -> ClientPath | None:
    """Parse a topic, None = it is none of these; the client's id is not checked."""
    if topic.startswith(OWN):
        return _parsed("", topic[len(OWN) :].split("/"))
    if not topic.startswith(OF_CLIENTS):
        return None
    levels = topic[len(OF_CLIENTS) :].split("/")
    # A module may be called like a family of topics; what follows a family never is.
    return _parsed(levels[0], levels[1:]) or _parsed("/".join(levels[:2]), levels[2:])


def client_levels(
    path: str,
    name: str = "",
    *,
    rid: str | None = None,
    version: int | str | None = None,
    at_ms: int | None = None,
    failed: bool = False,
) -> str:
    """Build the levels of a topic behind its client."""
    given = (
        ("$rid", rid),
        ("$version", version),
        ("$at", at_ms),
        ("$failed", "true" if failed else None),
    )
    last = "&".join(f"{key}={value}" for key, value in given if value is not None)
    return f"{path}/{name}/?{last}" if name else f"{path}/?{last}"


def _parsed(client: str, levels: list[str]) -> ClientPath | None:
    if levels[:1] and levels[0] not in _FAMILIES:
        return None
    parameters: dict[str, str] = {}
    if levels[-1:] and levels[-1].startswith("?"):
        for item in levels.pop()[1:].split("&"):
            key, _, value = item.partition("=")
            parameters.setdefault(key, value)
    elif levels[-1:] == [""]:
        levels = levels[:-1]
    name = ""
    path = "/".join(levels)
    if path not in _PATHS:
        path, _, name = path.rpartition("/")
    if path not in _PATHS or bool(name) != (path in _WITH_NAME):
        return None
    return ClientPath(client, path, name, parameters)
