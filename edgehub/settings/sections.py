"""The model of the settings as a tree: which sections a field holds, by which names."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


def section_types(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models of a field that is a section, or that holds sections by name."""
    return [
        kind
        for kind in alternatives(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]


def is_by_name(field: FieldInfo) -> bool:
    """Return whether what a field holds has names of the operator's own."""
    return get_origin(field.annotation) is dict


def section_description(field: FieldInfo) -> str:
    """Return what a section is for: its own description, or else what its model is."""
    model = section_types(field)[0]
    about = field.description or str(model.__doc__).partition(": ")[2]
    return about[:1].upper() + about[1:]


def endpoint_kind(endpoint: type[BaseModel]) -> str:
    """Return the `type` by which the settings choose an endpoint model."""
    (kind,) = get_args(endpoint.model_fields["type"].annotation)
    return str(kind)


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield what an annotation allows, sections that it holds by name included."""
    if hasattr(annotation, "__metadata__"):
        yield from alternatives(annotation.__origin__)
    elif get_origin(annotation) in {Union, UnionType}:
        for kind in get_args(annotation):
            yield from alternatives(kind)
    elif get_origin(annotation) is dict:
        yield from alternatives(get_args(annotation)[1])
    elif annotation is not NoneType:
        yield annotation
