"""The tenant of a message, and the rate limit of each tenant.

Owns the tenants of senders and their allowances. A sender has the tenant of its own identity, else
that of the identity that may speak for it; a sender that is not listed, or could belong to two, has
the default tenant. Invariant: what is remembered of senders is bounded and removed with the
identities it came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.devices.identities import Identities
    from edgehub.message import Message

REMEMBERED_MAX: Final = 10_000
BURST_S: Final = 1.0
"""An allowance may be used up to so long in advance."""

log = structlog.get_logger(__name__)


class Tenancy:
    """The tenants of senders, and their rate limits.

    Args:
        identities: The identities with their tenants.
        event_rate_max: Messages per second of each tenant, None = no limit.
        clock: For allowances.
    """

    def __init__(
        self, identities: Identities, event_rate_max: Mapping[str, float | None], clock: Clock
    ) -> None:
        self._identities = identities
        self._version = -1
        self._scopes: list[tuple[re.Pattern[str], str]] = []
        self._known: dict[str, str] = {}
        self._allowances = {
            tenant: _Allowance(rate, clock)
            for tenant, rate in event_rate_max.items()
            if rate is not None
        }
        self.refused_total = dict.fromkeys(event_rate_max, 0)
        """Messages beyond the allowance, by tenant."""

    def of(self, message: Message) -> str:
        """Return the tenant of a message; empty = the default one."""
        if self._version != self._identities.version:
            self._reload()
        sender = message.sender
        tenant = self._known.get(sender)
        if tenant is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            tenant = self._known[sender] = self._find(sender)
        return tenant

    def allows(self, tenant: str) -> bool:
        """Count one message against the allowance of a tenant; False = it is used up."""
        allowance = self._allowances.get(tenant)
        if allowance is None or allowance.take():
            return True
        self.refused_total[tenant] += 1
        return False

    def _reload(self) -> None:
        self._version = self._identities.version
        self._known.clear()
        scopes = ((entry.scope(), entry.tenant) for entry in self._identities.entries())
        self._scopes = [(scope, tenant) for scope, tenant in scopes if scope is not None]

    def _find(self, sender: str) -> str:
        own = self._identities.get(sender) or self._identities.get(sender.partition("/")[0])
        if own is not None:
            return own.tenant
        found = {tenant for scope, tenant in self._scopes if scope.match(sender)}
        if len(found) > 1:
            log.warning("tenancy.sender_ambiguous", sender=sender, tenants=sorted(found))
        return found.pop() if len(found) == 1 else ""


class _Allowance:
    """A bucket that fills at a rate, on elapsed time."""

    __slots__ = ("_at", "_clock", "_left", "_most", "_rate")

    def __init__(self, rate: float, clock: Clock) -> None:
        self._clock = clock
        self._rate = rate
        self._most = max(1.0, rate * BURST_S)
        self._left = self._most
        self._at = clock.monotonic()

    def take(self) -> bool:
        now = self._clock.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
