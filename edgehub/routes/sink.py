"""Sinks: the destinations of routes.

Owns the three forms (`$upstream`, `BrokeredEndpoint("/modules/m/inputs/i")`, `Endpoint("name")`)
and turns them into endpoint ids. The route table checks whether a named endpoint exists.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from edgehub.message import UPSTREAM, EndpointId, module_input
from edgehub.routes.hints import PartFault, near_miss

ENDPOINT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

_FUNCTIONS: Final = {"brokeredendpoint": "BrokeredEndpoint", "endpoint": "Endpoint"}
_MODULE_PATH_EXAMPLE: Final = 'BrokeredEndpoint("/modules/filter/inputs/raw")'
_MODULE_PATH_PARTS: Final = 4
_NO_TOPIC: Final = re.compile(r"[+#\x00-\x1f\x7f]")


class Sink(Struct, frozen=True, kw_only=True):
    """A checked sink.

    Attributes:
        endpoint_id: Destination.
        named: It is an endpoint of the settings, which may or may not exist.
        line: Line of the sink in the route text.
        column: Column of the sink in that line.
    """

    endpoint_id: EndpointId
    named: bool
    line: int
    column: int

    def __str__(self) -> str:
        parts = self.endpoint_id.split("/")
        if len(parts) == _MODULE_PATH_PARTS:
            return f"module:{parts[1]}/{parts[3]}"
        return f"endpoint:{self.endpoint_id}" if self.named else self.endpoint_id


def named_sink(name: str, line: int, column: int) -> Sink:
    """Check a sink of the form `$name`.

    Raises:
        PartFault: If it is not `$upstream`.
    """
    if name.lower() != "$upstream":
        raise PartFault(f"`{name}` is not a sink", "the only sink with a `$` is `$upstream`")
    return Sink(endpoint_id=UPSTREAM, named=False, line=line, column=column)


def called_sink(function: str, argument: str, line: int, column: int) -> Sink:
    """Check a sink of the form `function("argument")`.

    Raises:
        PartFault: If there is no such function, or the argument does not fit it.
    """
    name = _FUNCTIONS.get(function.lower())
    if name is None:
        close = near_miss(function.lower(), _FUNCTIONS)
        raise PartFault(
            f"`{function}` is not a kind of sink",
            f"did you mean `{_FUNCTIONS[close]}`?" if close else "use BrokeredEndpoint or Endpoint",
        )
    if name == "BrokeredEndpoint":
        return Sink(endpoint_id=_module_endpoint(argument), named=False, line=line, column=column)
    endpoint = argument.strip()
    if ENDPOINT_NAME.fullmatch(endpoint) is None:
        raise PartFault(
            f'"{endpoint}" is not an endpoint name',
            "a name has 1 to 63 characters of a-z, 0-9 and -, and does not begin with -",
        )
    named = endpoint != UPSTREAM
    return Sink(endpoint_id=EndpointId(endpoint), named=named, line=line, column=column)


def _module_endpoint(path: str) -> EndpointId:
    parts = path.strip().removeprefix("/").removesuffix("/").split("/")
    if len(parts) != _MODULE_PATH_PARTS:
        raise PartFault(
            f'"{path}" does not name an input of a module', f"write it as {_MODULE_PATH_EXAMPLE}"
        )
    modules, module_id, inputs, input_name = parts
    for word, wanted in ((modules, "modules"), (inputs, "inputs")):
        if word.lower() != wanted:
            raise PartFault(
                f'"{path}": `{word}` stands where `{wanted}` belongs',
                f"write it as {_MODULE_PATH_EXAMPLE}",
            )
    if not module_id.strip() or not input_name.strip():
        empty = "input" if module_id.strip() else "module"
        raise PartFault(f'"{path}": the {empty} is empty', f"write it as {_MODULE_PATH_EXAMPLE}")
    for name in (module_id, input_name):
        if _NO_TOPIC.search(name):
            raise PartFault(
                f'"{path}": `{name}` has a character that no MQTT topic can hold',
                "leave out `+`, `#` and control characters",
            )
    return module_input(module_id, input_name)
