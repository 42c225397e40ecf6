"""Options of the form NAME=VALUE."""

from __future__ import annotations


def named_values(values: tuple[str, ...]) -> dict[str, str]:
    """Return the values by name; the last one of a name counts.

    Raises:
        ValueError: One is not NAME=VALUE.
    """
    found = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not (name and separator):
            raise ValueError(f"{value!r} is not NAME=VALUE")
        found[name] = text
    return found
