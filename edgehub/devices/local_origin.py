"""Which requests without credentials come from this machine and not from a page of another site.

Pure rules, shared by all that speak HTTP. A browser on this machine reaches loopback addresses for
every page that it shows: a page elsewhere may ask across origins, or let its own name point to
127.0.0.1 (DNS rebinding), and neither needs a password of the hub.

Source: Fetch Metadata (`Sec-Fetch-Site`), RFC 9110 section 7.2 (`Host`), RFC 6454 (`Origin`).
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_ADDRESS_CHARS_MAX: Final = 64
_SAME_SITE: Final = frozenset({"", "same-origin", "none"})


class Foreign(StrEnum):
    """Why a request is refused; the text says how to fix it."""

    HOST = "without credentials, requests come by a name of this machine"
    ORIGIN = "without credentials, pages of other origins may not ask"


def foreign(
    host: str, origin: str | None, fetch_site: str, host_names: Collection[str] = ()
) -> Foreign | None:
    """Return why a request is not one of this machine, None = it is.

    Args:
        host: The header `Host`.
        origin: The header `Origin`, None = there is none.
        fetch_site: The header `Sec-Fetch-Site`, empty = there is none.
        host_names: Further names than loopback ones that are this machine's, in small letters.
    """
    if not _is_ours(_name_of(host), host_names):
        return Foreign.HOST
    if origin is not None and not _is_ours(_name_of(origin.partition("://")[2]), host_names):
        return Foreign.ORIGIN
    return None if fetch_site in _SAME_SITE else Foreign.ORIGIN


def _is_ours(host: str, host_names: Collection[str]) -> bool:
    if host == "localhost" or host.endswith(".localhost") or host in host_names:
        return True
    return len(host) <= _ADDRESS_CHARS_MAX and _is_loopback(host)


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name_of(authority: str) -> str:
    """Return the host of `host:port`, without the brackets of an IPv6 address."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].rstrip(".").lower()
