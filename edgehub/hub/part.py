"""The contract of a part of the hub, as the one that starts, reloads, shows and stops them sees it.

A subsystem has one part. What a part has no use for it leaves as it is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgehub.operations.operation import Operation
    from edgehub.settings.configuration import Configuration
    from edgehub.telemetry.losses import Loss


class Part:
    """One subsystem of a hub.

    Attributes:
        name: Names its task in the log.
    """

    name: ClassVar[str]

    async def open(self) -> None:
        """Take what is needed before anything runs: addresses, stored state.

        Raises:
            StartupError: It cannot be had.
            ConfigError: Something that the settings name is wrong.
        """

    async def run(self) -> None:
        """Work until cancelled."""

    async def drain(self, deadline: float) -> None:
        """Finish what was begun, until `deadline` (monotonic seconds) at the latest."""

    async def close(self) -> None:
        """Release what `open` took, also if that failed half way."""

    async def check(self, configuration: Configuration) -> None:
        """Refuse a configuration of a reload that cannot be put in force here.

        Raises:
            ConfigError: It cannot; nothing has changed.
        """

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Put a checked configuration in force.

        Returns:
            What to say of it in the outcome of the reload: `endpoints`, `warnings`.

        Raises:
            ConfigError: It was possible at the check and is not any more; nothing has changed.
        """
        del configuration
        return {}

    def status(self) -> dict[str, Any]:
        """Return its members of the status document."""
        return {}

    def warnings(self) -> list[str]:
        """List what an operator should look at; called after `status`."""
        return []

    def operations(self) -> Sequence[Operation]:
        """Return what an operator may ask of it or change."""
        return ()

    def losses(self) -> Iterable[Loss]:
        """Return what was lost for good since the start."""
        return ()

    def stalled(self, seconds: float) -> dict[str, float]:
        """Return what has stood still for at least `seconds`, and for how long."""
        del seconds
        return {}

    def ports(self) -> dict[str, int | None]:
        """Return the TCP ports that it listens on, by what the log calls them."""
        return {}
