"""Errors of the mapper and of the entity directory; texts go to the errors topic or the caller."""

from __future__ import annotations

from typing import Final

from edgehub.errors import EdgeHubError


class MappingError(EdgeHubError):
    """A message cannot be used; the text says why."""


class UnknownEntityError(EdgeHubError):
    """What is named is not registered."""


class EntityArgumentError(EdgeHubError):
    """A request cannot be understood."""


class NoRoomError(EdgeHubError):
    """The store is full; later the same may be possible."""


NO_ENTITIES: Final = "this hub keeps no entities: set enabled = true in [mapper] and restart it"


class NoEntitiesError(EdgeHubError):
    """The hub runs no mapper."""
