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


class RedisAwayError(RedisError):
    """No answer: the server cannot be reached, went away, or took too long.

    Attributes:
        unsure: The command had left, so that the server may have carried it out.
    """

    def __init__(self, reason: str, *, unsure: bool) -> None:
        super().__init__(reason)
        self.unsure = unsure


class RedisRefusedError(RedisError):
    """The server answered with an error; nothing was done.

    Attributes:
        code: First word of its answer, for example `OOM`, `NOAUTH` or `WRONGTYPE`; a script's own
            word where the script refused.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code} {reason}".strip())
        self.code = code
