"""Entities behind the hub, and what their messages become in the cloud."""

from edgehub.entities.effects import Effect, Instant, LocalPublish, Output, OutputName, TableChange
from edgehub.entities.mapper import Mapper
from edgehub.entities.options import Availability, CacheScope, MapperOptions

__all__ = [
    "Availability",
    "CacheScope",
    "Effect",
    "Instant",
    "LocalPublish",
    "Mapper",
    "MapperOptions",
    "Output",
    "OutputName",
    "TableChange",
]
