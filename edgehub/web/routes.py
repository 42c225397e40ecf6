"""Which handler answers which path.

Owns the table of paths. Invariant: a path is what it is, there are no redirects, on which a client
would lose its token.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec import Struct

from edgehub.operations.problem import ProblemError
from edgehub.web.answers import ApiAnswer
from edgehub.web.request import ApiRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

Handler = Callable[[ApiRequest], Awaitable[ApiAnswer]]


class ApiRoute(Struct, frozen=True):
    """A handler and its place.

    Attributes:
        method: Its method; one for `GET` serves `HEAD` too.
        path: Its path, with names of arguments in braces; each stands for any text.
        handler: What answers.
    """

    method: str
    path: str
    handler: Handler


class ApiRoutes:
    """The routes by their paths.

    Args:
        routes: All of them.
    """

    __slots__ = ("_by_root",)

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        methods: dict[str, dict[str, Handler]] = {}
        # The longest paths first, since one may end another.
        for route in sorted(routes, key=lambda route: len(route.path), reverse=True):
            methods.setdefault(route.path, {})[route.method] = route.handler
        self._by_root: dict[str, list[tuple[re.Pattern[str], dict[str, Handler]]]] = {}
        for path, handlers in methods.items():
            self._by_root.setdefault(_root(path), []).append((_pattern(path), handlers))

    def find(self, request: ApiRequest) -> Handler:
        """Return what answers a request, and set the arguments in its path.

        Raises:
            ProblemError: 404 if nothing has its path, 405 if that has other methods.
        """
        method = "GET" if request.verb == "HEAD" else request.verb
        allowed: set[str] = set()
        for pattern, handlers in self._by_root.get(_root(request.path), ()):
            found = pattern.fullmatch(request.path)
            if found is None:
                continue
            if method in handlers:
                request.path_arguments = found.groupdict()
                return handlers[method]
            allowed |= handlers.keys()
        if not allowed:
            raise ProblemError(
                HTTPStatus.NOT_FOUND,
                "not_found",
                "nothing has this path; /openapi.json lists what there is",
            )
        raise ProblemError(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this path has other methods; see the header Allow",
            headers={
                "Allow": ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
            },
        )


def _root(path: str) -> str:
    """Return the beginning of a path in which no route has an argument, as `/api/v1/devices`."""
    return "/".join(path.split("/", 4)[:4])


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*)", re.escape(path)))
