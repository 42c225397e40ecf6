"""Entities behind the hub, and what their messages become in the cloud."""

from edgehub.entities.effects import Change, Effect, Instant, Output, OutputName, Publish
from edgehub.entities.mapper import Mapper
from edgehub.entities.options import Availability, CacheScope, MapperOptions

__all__ = [
    "Availability",
    "CacheScope",
    "Change",
    "Effect",
    "Instant",
    "Mapper",
    "MapperOptions",
    "Output",
    "OutputName",
    "Publish",
]
