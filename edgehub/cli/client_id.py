"""The argument CLIENT of commands: a device, or a module of one."""

from __future__ import annotations

from typing import Any

import click

client_argument = click.argument("client_id", metavar="DEVICE[/MODULE]")


def client_arguments(client_id: str) -> dict[str, Any]:
    """Return the arguments of an operation on a client; the hub checks them."""
    device_id, slash, module_id = client_id.partition("/")
    return {"device_id": device_id, "module_id": module_id if slash else None}
