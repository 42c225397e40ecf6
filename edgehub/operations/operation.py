"""Operations: what an operator may ask of a running hub, or change; each is declared once.

The control socket and the HTTP API are transports of this table, the command line formats the
results. Invariant: an argument that is not as declared is an error that names what is expected, by
whichever transport it came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, NoReturn

from msgspec import Meta, Struct, ValidationError, convert, json

from edgehub.errors import EdgeHubError
from edgehub.routes.tenant import Tenant

Handler = Callable[..., Awaitable[Any]]

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
    SECONDS = "seconds"
    FLAG = "flag"
    TENANT = "tenant"
    TEXTS = "texts"
    WHOLES = "wholes"
    JSON = "json"


IN_BODY: Final = frozenset({ArgumentKind.FILE, ArgumentKind.TEXTS, ArgumentKind.JSON})
"""Kinds that a query string does not carry."""


class Argument(Struct, frozen=True):
    """One argument.

    Attributes:
        name: Its name.
        about: Its meaning, for the API's document.
        kind: What it may be.
        required: It must be given.
        default: Its value if it is absent; None = it stays absent.
        minimum: Smallest number.
        maximum: Largest number, or most members of a list.
        choices: The texts that it may be; empty = any.
        protected: It reveals what clients sent, so only callers with the right to change may set
            it.
    """

    name: str
    about: str
    kind: ArgumentKind = ArgumentKind.TEXT
    required: bool = False
    default: Any = None
    minimum: int = 0
    maximum: int = WHOLE_MAX
    choices: tuple[str, ...] = ()
    protected: bool = False

    def check(self, value: Any) -> Any:
        """Return a value that is as declared, a tenant parsed.

        Raises:
            ArgumentError: It is not.
        """
        if (value is None and not self.required) or isinstance(value, Tenant):
            return value
        try:
            if self.kind is ArgumentKind.TENANT and isinstance(value, str):
                return Tenant.parse(value)
        except ValueError as error:
            raise ArgumentError(f"`{self.name}`: {error}") from error
        if self._fits(value):
            return value
        raise ArgumentError(f"`{self.name}`: want {self._expected()}")

    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema."""
        choices = {"enum": list(self.choices)} if self.choices else {}
        default = {} if self.default is None else {"default": self.default}
        return json.schema(self._type()) | choices | {"description": self.about} | default

    def _fits(self, value: Any) -> bool:
        if value is None or (self.choices and value not in self.choices):
            return False
        try:
            convert(value, self._type())
        except ValidationError:
            return False
        return True

    def _type(self) -> Any:
        """Return the type of its values in JSON."""
        each = Annotated[int, Meta(ge=self.minimum, le=WHOLE_MAX)]
        return {
            ArgumentKind.TEXT: Annotated[str, Meta(min_length=1)],
            ArgumentKind.FILE: str,
            ArgumentKind.WHOLE: Annotated[int, Meta(ge=self.minimum, le=self.maximum)],
            ArgumentKind.SECONDS: Annotated[float, Meta(gt=0, le=self.maximum)],
            ArgumentKind.FLAG: bool,
            ArgumentKind.TENANT: str,
            ArgumentKind.TEXTS: list[str],
            ArgumentKind.WHOLES: Annotated[list[each], Meta(max_length=self.maximum)],
            ArgumentKind.JSON: Any,
        }[self.kind]

    def _expected(self) -> str:
        text = f"one of {', '.join(self.choices)}" if self.choices else "a text that is not empty"
        return {
            ArgumentKind.TEXT: text,
            ArgumentKind.FILE: "the text of a file",
            ArgumentKind.WHOLE: f"a whole number from {self.minimum} to {self.maximum}",
            ArgumentKind.SECONDS: f"a number of seconds above 0, at most {self.maximum}",
            ArgumentKind.FLAG: "true or false",
            ArgumentKind.TENANT: "`organisation/application`",
            ArgumentKind.TEXTS: "a list of texts",
            ArgumentKind.WHOLES: f"a list of at most {self.maximum} whole numbers",
            ArgumentKind.JSON: self.about,
        }[self.kind]


class Resource(Struct, frozen=True, kw_only=True):
    """The place of an operation in the HTTP API.

    Attributes:
        method: Its method.
        path: Its path, with names of arguments in braces. What is neither in the path nor the body
            is a parameter of the query, or a member of the body if that is an object of them.
        body: Argument that is the whole body, empty = none.
        entity: The result has a revision, which is its entity tag; None = it has not. The member
            of the result that has it, empty = the result itself.
    """

    method: str
    path: str
    body: str = ""
    entity: str | None = None


class Operation(Struct, frozen=True, kw_only=True):
    """One operation.

    Attributes:
        name: Its name, as on the command line.
        about: What it does, in a sentence.
        handler: Does it; gets the checked arguments by their names, returns what JSON can hold.
        result: The type of what the handler returns, as `module:name`, for the API's document; hubs
            without an API do not load it.
        arguments: What it takes.
        changes: It changes something, so a caller with read access is refused.
        resource: Its place in the HTTP API, None = a path of its name.
    """

    name: str
    about: str
    handler: Handler
    result: str
    arguments: tuple[Argument, ...] = ()
    changes: bool = False
    resource: Resource | None = None

    async def __call__(self, given: Mapping[str, Any]) -> Any:
        """Check the arguments and do it.

        Raises:
            ArgumentError: An argument is not as declared.
            EdgeHubError: It cannot be done; the text says why.
        """
        arguments: dict[str, Any] = {}
        known = 0
        for argument in self.arguments:
            name = argument.name
            value = None
            if name in given or argument.required:
                known += name in given
                value = arguments[name] = argument.check(given.get(name))
            if value is None and argument.default is not None:
                arguments[name] = argument.default
        if known < len(given):
            self._refuse_unknown(given)
        return await self.handler(**arguments)

    def _refuse_unknown(self, given: Collection[str]) -> NoReturn:
        names = [argument.name for argument in self.arguments]
        name = next(each for each in given if each not in names)
        known = f"it takes {', '.join(names)}" if names else "it takes none"
        raise ArgumentError(f"{self.name} has no argument `{name}`; {known}")

    @property
    def place(self) -> Resource:
        """Return its place in the HTTP API."""
        if self.resource is not None:
            return self.resource
        takes_body = self.changes or self._fits_no_query
        path = f"/api/v1/{self.name.replace(' ', '/')}"
        return Resource(method="POST" if takes_body else "GET", path=path)

    @property
    def takes_object(self) -> bool:
        """Whether the HTTP API takes arguments that are not in the path as a JSON object."""
        place = self.place
        is_post = place.method == "POST" and not place.body
        return is_post and (self.resource is None or self._fits_no_query)

    @property
    def _fits_no_query(self) -> bool:
        return any(each.kind in IN_BODY for each in self.arguments)
