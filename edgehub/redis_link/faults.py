"""What may go wrong between a hub and Redis, in words that callers can act on."""

from __future__ import annotations

from edgehub.errors import EdgeHubError


class RedisError(EdgeHubError):
    """Root of the errors of the link.

    Attributes:
        reason: What happened, without secrets.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"redis: {reason}")
        self.reason = reason


class RedisUnavailableError(RedisError):
    """No answer: the server is unreachable, closed the connection, or took too long.

    Attributes:
        outcome_unknown: The command was sent, so the server may have executed it.
    """

    def __init__(self, reason: str, *, outcome_unknown: bool) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


class RedisRefusedError(RedisError):
    """The server answered with an error; nothing was done.

    Attributes:
        code: First word of its answer, for example `OOM`, `NOAUTH` or `WRONGTYPE`; a script's own
            word where the script refused.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code} {reason}".strip())
        self.code = code
