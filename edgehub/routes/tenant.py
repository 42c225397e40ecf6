"""Tenants, and the keys of routes.

A tenant is an application of an organisation. Its routes take its own messages alone. A hub without
tenants has the default one.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")
_PARTS: Final = 3


class Tenant(NamedTuple):
    """One tenant.

    Attributes:
        org: Organisation.
        app: Application.
    """

    org: str
    app: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `organisation/application`; empty = the default tenant.

        Raises:
            ValueError: It is none.
        """
        if not text:
            return cls(*DEFAULT_TENANT)
        org, _, app = text.partition("/")
        if _NAME.fullmatch(org) is None or _NAME.fullmatch(app) is None:
            raise ValueError(
                f"{text!r} is no tenant; write organisation/application, in a-z, 0-9, _ and -"
            )
        return cls(org, app)

    def __str__(self) -> str:
        return f"{self.org}/{self.app}"

    @property
    def label(self) -> str:
        """Return the tenant as in messages; empty = the default tenant."""
        return "" if self == DEFAULT_TENANT else str(self)


DEFAULT_TENANT: Final = Tenant("default", "default")


def tenant_name(name: str) -> str:
    """Return the name of a tenant, `organisation/application`.

    Raises:
        ValueError: It is none, or that of the default tenant.
    """
    # Without a slash it is no tenant, nor is the empty name, by which the default one is meant.
    if Tenant.parse(name or "/") == DEFAULT_TENANT:
        raise ValueError(
            "default/default is the tenant of clients without one; it needs no section"
        )
    return name


class RouteKey(NamedTuple):
    """The key of one route.

    Attributes:
        tenant: Its tenant.
        id: Unique in the tenant.
    """

    tenant: Tenant
    id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the result of `__str__`.

        Raises:
            ValueError: It is none.
        """
        parts = text.split("/", _PARTS - 1)
        if len(parts) != _PARTS or not all(parts):
            raise ValueError(f"{text!r} is no key of a route")
        return cls(Tenant(parts[0], parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.tenant}/{self.id}"

    @property
    def name(self) -> str:
        """Return the name of the route in rows, journal and messages."""
        return self.id if self.tenant == DEFAULT_TENANT else str(self)
