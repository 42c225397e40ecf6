"""MQTT topic names and topic filters: validity, matching, relations of two filters.

Pure functions on text. Every part that matches topics calls these, so that a filter matches the
same topics in a subscription, in a right, in a route and in the settings. Source: MQTT 5 and 3.1.1,
section 4.7.
"""

from __future__ import annotations

from typing import Final

ANY_LEVEL: Final = "+"
ANY_REST: Final = "#"
WILDCARDS: Final = (ANY_LEVEL, ANY_REST)


SHARED: Final = "$share/"
"""Prefix of a shared subscription, `$share/<group>/<filter>`; MQTT 5, section 4.8.2."""


def split_share(topic_filter: str) -> tuple[str, str]:
    """Split a subscription into its group, empty = it is not shared, and its filter.

    The filter is empty, and so not valid, if the group is malformed.
    """
    if not topic_filter.startswith(SHARED):
        return "", topic_filter
    group, _, rest = topic_filter.removeprefix(SHARED).partition("/")
    if not group or any(sign in group for sign in WILDCARDS):
        rest = ""
    return group or SHARED, rest


def filter_fault(topic_filter: str) -> str:
    """Return what is wrong with a topic filter; empty = nothing."""
    if not topic_filter:
        return "the topic filter is empty"
    if "\0" in topic_filter:
        return "a topic filter holds no NUL character"
    levels = topic_filter.split("/")
    for index, level in enumerate(levels):
        if ANY_REST in level and (level != ANY_REST or index != len(levels) - 1):
            return f"`{level}`: `#` must be the whole last level of a topic filter"
        if ANY_LEVEL in level and level != ANY_LEVEL:
            return f"`{level}`: `+` must be a whole level of a topic filter"
    return ""


def bytes_in(text: str) -> int:
    """Return the bytes of a topic or filter in UTF-8, for bounds."""
    return len(text) if text.isascii() else len(text.encode())


def is_topic(topic: str) -> bool:
    """Return whether a text is a topic name, which has no wildcards."""
    return bool(topic) and not any(sign in topic for sign in "+#\0")


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic; `#` includes the parent level.

    A wildcard in the first level does not match topics that begin with `$`.
    """
    return takes_levels(topic_filter.split("/"), topic.split("/"))


def takes_levels(wanted: list[str], names: list[str]) -> bool:
    """Return `matches` for the levels of a filter and a topic."""
    if names[0].startswith("$") and wanted[0] in WILDCARDS:
        return False
    for index, level in enumerate(wanted):
        if level == ANY_REST:
            return True
        if index == len(names):
            return False
        if level not in (ANY_LEVEL, names[index]):
            return False
    return len(wanted) == len(names)


def covers(wider: str, narrower: str) -> bool:
    """Return whether a filter matches every topic that another one matches."""
    outer, inner = wider.split("/"), narrower.split("/")
    if outer == [ANY_LEVEL, ANY_REST]:
        # Each topic has a first level, so this is equivalent to `#`.
        outer = [ANY_REST]
    if outer[0] in WILDCARDS and inner[0].startswith("$"):
        return False
    for index, level in enumerate(outer):
        if level == ANY_REST:
            return True
        if index == len(inner) or inner[index] == ANY_REST:
            return False
        if level not in (ANY_LEVEL, inner[index]):
            return False
    return len(outer) == len(inner)


def overlaps(one: str, other: str) -> bool:
    """Return whether some topic matches both filters."""
    ours, theirs = one.split("/"), other.split("/")
    if _apart_by_dollar(ours[0], theirs[0]) or _apart_by_dollar(theirs[0], ours[0]):
        return False
    for index in range(max(len(ours), len(theirs))):
        if ANY_REST in (*ours[index : index + 1], *theirs[index : index + 1]):
            return True
        if index >= min(len(ours), len(theirs)):
            return False
        if not _agree(ours[index], theirs[index]):
            return False
    return True


def _apart_by_dollar(level: str, other: str) -> bool:
    return level in WILDCARDS and other.startswith("$")


def _agree(level: str, other: str) -> bool:
    return level == other or ANY_LEVEL in (level, other)
