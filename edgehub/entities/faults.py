"""What the mapper refuses, with the text for the errors topic."""

from __future__ import annotations

from edgehub.errors import EdgeHubError


class MappingError(EdgeHubError):
    """A message cannot be used; the text says why."""
