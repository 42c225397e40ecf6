"""Operations: what an operator may ask of a running hub, or change; each is declared once.

The control socket and the HTTP API carry them, the command line shows what they return. Invariant:
an argument that is not what was declared is an error that says what was wanted, whoever carried it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from edgehub.errors import EdgeHubError

Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]

WHOLE_MAX: Final = 2**62


class ArgumentError(EdgeHubError):
    """An operation was called with arguments that it cannot use."""


class NotFoundError(EdgeHubError):
    """What an operation names does not exist."""


class ArgumentKind(StrEnum):
    """What an argument may be."""

    TEXT = "text"
    FILE = "file"
    WHOLE = "whole"
    FLAG = "flag"
    TEXTS = "texts"
    WHOLES = "wholes"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument.

    Attributes:
        name: Its name.
        about: What it says, for the API's document.
        kind: What it may be.
        required: It must be there.
        default: Where it is absent; None = it stays absent.
        maximum: Largest number, or most members of a list.
        protected: Only callers that may change the hub may give it: it shows what clients sent.
    """

    name: str
    about: str
    kind: ArgumentKind = ArgumentKind.TEXT
    required: bool = False
    default: Any = None
    maximum: int = WHOLE_MAX
    protected: bool = False

    def check(self, value: Any) -> Any:
        """Return a value that is as declared.

        Raises:
            ArgumentError: It is not.
        """
        if (value is None and not self.required) or _FITS[self.kind](self, value):
            return value
        raise ArgumentError(f"want `{self.name}`, {self._wanted()}")

    def schema(self) -> dict[str, Any]:
        """Describe its values in JSON Schema."""
        whole = {"type": "integer", "minimum": 0, "maximum": self.maximum}
        schemas: dict[ArgumentKind, dict[str, Any]] = {
            ArgumentKind.TEXT: {"type": "string", "minLength": 1},
            ArgumentKind.FILE: {"type": "string"},
            ArgumentKind.WHOLE: whole,
            ArgumentKind.FLAG: {"type": "boolean"},
            ArgumentKind.TEXTS: {"type": "array", "items": {"type": "string"}},
            ArgumentKind.WHOLES: {
                "type": "array",
                "items": {**whole, "maximum": WHOLE_MAX},
                "maxItems": self.maximum,
            },
            ArgumentKind.JSON: {},
        }
        schema = {**schemas[self.kind], "description": self.about}
        return schema if self.default is None else {**schema, "default": self.default}

    def _wanted(self) -> str:
        return {
            ArgumentKind.TEXT: "a text that is not empty",
            ArgumentKind.FILE: "the text of a file",
            ArgumentKind.WHOLE: f"a whole number from 0 to {self.maximum}",
            ArgumentKind.FLAG: "true or false",
            ArgumentKind.TEXTS: "a list of texts",
            ArgumentKind.WHOLES: f"a list of at most {self.maximum} whole numbers",
            ArgumentKind.JSON: self.about,
        }[self.kind]


def _is_whole(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


_FITS: Final[dict[ArgumentKind, Callable[[Argument, Any], bool]]] = {
    ArgumentKind.TEXT: lambda _argument, value: isinstance(value, str) and bool(value),
    ArgumentKind.FILE: lambda _argument, value: isinstance(value, str),
    ArgumentKind.WHOLE: lambda argument, value: _is_whole(value, argument.maximum),
    ArgumentKind.FLAG: lambda _argument, value: isinstance(value, bool),
    ArgumentKind.TEXTS: lambda _argument, value: (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ),
    ArgumentKind.WHOLES: lambda argument, value: (
        isinstance(value, list)
        and len(value) <= argument.maximum
        and all(_is_whole(each, WHOLE_MAX) for each in value)
    ),
    ArgumentKind.JSON: lambda argument, value: value is not None or not argument.required,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Attributes:
        name: Its name, as on the command line.
        about: What it does, in a sentence.
        handler: Does it; gets the arguments, checked, and returns what JSON can hold.
        arguments: What it takes.
        changes: It changes something, so that reading is not enough for it.
        resource: The HTTP API has a resource of its own for it, in place of a path by its name.
    """

    name: str
    about: str
    handler: Handler
    arguments: tuple[Argument, ...] = ()
    changes: bool = False
    resource: bool = False

    async def __call__(self, given: Mapping[str, Any]) -> Any:
        """Check the arguments and do it.

        Raises:
            ArgumentError: An argument is not what was declared.
            EdgeHubError: It cannot be done; the text says why.
        """
        names = [argument.name for argument in self.arguments]
        for name in given:
            if name not in names:
                known = f"it takes {', '.join(names)}" if names else "it takes none"
                raise ArgumentError(f"{self.name} has no argument `{name}`; {known}")
        arguments: dict[str, Any] = {}
        for argument in self.arguments:
            if argument.name in given or argument.required:
                arguments[argument.name] = argument.check(given.get(argument.name))
            if argument.default is not None and arguments.get(argument.name) is None:
                arguments[argument.name] = argument.default
        return await self.handler(arguments)

    @property
    def path(self) -> str:
        """Path in the HTTP API, without a resource of its own."""
        return f"/api/v1/{self.name.replace(' ', '/')}"

    @property
    def takes_body(self) -> bool:
        """Whether its arguments go into a body: it changes something, or takes more than words."""
        plain = {ArgumentKind.TEXT, ArgumentKind.WHOLE, ArgumentKind.FLAG}
        return self.changes or any(each.kind not in plain for each in self.arguments)
