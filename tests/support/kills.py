"""A parent and a child as processes with devices behind the child, for tests that kill them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support.daemon import Daemon
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = ("d-0", "d-1")


def parent_and_child(folder: Path) -> tuple[Daemon, Daemon]:
    """Start them; the child speaks for `d-*`, and its peer has twins and methods of them."""
    ports = {name: free_port() for name in ("parent", "child")}
    secret = folder / "password"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    with changing(folder / "identities") as entries:
        password = PasswordHash.of(b"secret")
        entries["child"] = Identity(id="child", password=password, on_behalf=("d-*",))
    more = {
        "parent": f"""
            identities_file = "{folder / "identities"}"
        """,
        "child": f"""
            [upstream]
            type = "mqtt"
            host = "127.0.0.1"
            port = {ports["parent"]}
            username = "child"
            password_file = "{secret}"
            twins = true
        """,
    }
    found = []
    for name, rest in more.items():
        (folder / name).mkdir()
        text = f"""
            hub_id = "{name}"
            data_dir = "data"
            [mqtt]
            port = {ports[name]}
        """
        found.append(Daemon(folder / name, text + rest).start())
    return found[0], found[1]
