"""Arguments of operations, declared in few words."""

from __future__ import annotations

from typing import Any

from edgehub.operations.operation import Argument, ArgumentKind


def text(name: str, about: str, **how: Any) -> Argument:
    """Declare a text that is not empty."""
    return Argument(name=name, about=about, **how)


def whole(name: str, about: str, **how: Any) -> Argument:
    """Declare a whole number from 0 to `maximum`."""
    return Argument(name=name, about=about, kind=ArgumentKind.WHOLE, **how)


def seconds(name: str, about: str, **how: Any) -> Argument:
    """Declare a number of seconds above 0, at most `maximum`."""
    return Argument(name=name, about=about, kind=ArgumentKind.SECONDS, **how)


def tenant(name: str, about: str) -> Argument:
    """Declare `organisation/application`."""
    return Argument(name=name, about=about, kind=ArgumentKind.TENANT)


def flag(name: str, about: str, **how: Any) -> Argument:
    """Declare true or false; absent = false."""
    return Argument(name=name, about=about, kind=ArgumentKind.FLAG, **{"default": False, **how})


def texts(name: str, about: str, **how: Any) -> Argument:
    """Declare a list of texts."""
    return Argument(name=name, about=about, kind=ArgumentKind.TEXTS, **how)


def wholes(name: str, about: str, **how: Any) -> Argument:
    """Declare a list of at most `maximum` whole numbers."""
    return Argument(name=name, about=about, kind=ArgumentKind.WHOLES, **how)


def document(name: str, about: str, **how: Any) -> Argument:
    """Declare any value of JSON; `about` says what it must be."""
    return Argument(name=name, about=about, kind=ArgumentKind.JSON, **how)
