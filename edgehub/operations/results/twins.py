"""Twins and answers of methods, as operations return them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class TwinRow(TypedDict):
    """A device or module that has a twin."""

    client_id: str
    desired_version: int
    reported_version: int


class TwinsDocument(TypedDict):
    """A page of twins.

    Attributes:
        next: `after` of the next page, null = this is the last.
    """

    twins: list[TwinRow]
    next: str | None


class TwinDocument(TypedDict):
    """A twin, in the form of Azure IoT Hub's service API.

    Attributes:
        moduleId: Null = the device itself.
        properties: `desired` and `reported`, each with its `$version`.
        owner: Hub that owns the device, which has its newest twin; null = this hub, or none is
            known now.
    """

    deviceId: str
    moduleId: str | None
    tags: dict[str, Any]
    properties: dict[str, Any]
    owner: str | None


class RemovedTwin(TypedDict):
    """Whether there was a twin."""

    client_id: str
    removed: bool


class MethodDocument(TypedDict):
    """The answer to a call of a method.

    Attributes:
        status: That the device or module chose.
        payload: Its JSON; what is no JSON is a text; null = none.
    """

    status: int
    payload: Any
