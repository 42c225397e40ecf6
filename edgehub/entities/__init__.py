"""Entities behind the hub, and what their messages become in the cloud."""

from edgehub.entities.effects import Effect, Instant, LocalPublish, Output, OutputName, TableChange
from edgehub.entities.mapper import Mapper
from edgehub.entities.options import MapperOptions, options_of

__all__ = [
    "Effect",
    "Instant",
    "LocalPublish",
    "Mapper",
    "MapperOptions",
    "Output",
    "OutputName",
    "TableChange",
    "options_of",
]
