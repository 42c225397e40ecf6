"""When and how fast an endpoint may use its link.

Owns that part of the endpoints' models; calls nothing of the hub.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field

from edgehub.settings.values import Section, Whole

FIELDS: Final = 5
_CHECKED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def _cron(expression: str) -> str:
    hint = f"in {expression!r}; write minute, hour, day, month and weekday in UTC"
    if len(expression.split()) != FIELDS:
        # With six the parser would take the first one for seconds.
        raise ValueError(f"Wrong number of fields {hint}")
    try:
        moment = next(CronSim(expression, _CHECKED_AT), None)
    except CronSimError as error:
        raise ValueError(f"{error} {hint}") from error
    if moment is None:
        raise ValueError(f"{expression!r} never comes")
    return expression


CronExpression = Annotated[str, AfterValidator(_cron)]
"""Five fields as cron has them, in UTC."""


class LinkSettings(Section):
    """A cap on the rate, and connection windows."""

    rate_bytes_s_max: Whole | None = Field(
        default=None,
        ge=1,
        description="Bytes per second at most; absent = what the link takes.",
        examples=[4000],
    )
    open_at: tuple[CronExpression, ...] = Field(
        default=(),
        description="Start of each connection window, as cron expressions in UTC; empty = "
        "no windows, always open.",
        examples=[["0 */6 * * *"]],
    )
    open_for_s: Whole = Field(
        default=600,
        ge=10,
        le=7 * 86_400,
        description="How long a connection window lasts.",
        json_schema_extra={"x-needs": "open_at"},
    )
    urgent_priority: Whole = Field(
        default=0,
        ge=-1,
        le=9,
        description="Rows of this priority or better connect at any time; -1 = none do.",
        json_schema_extra={"x-needs": "open_at"},
    )
