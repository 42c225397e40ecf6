"""`edgehub token`: the tokens file of the HTTP API.

Works on the file and asks no daemon, like `edgehub identity`; a running hub takes changes over at
its next reload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from edgehub.cli.arguments import checked
from edgehub.cli.credentials import CredentialFile, json_option
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import end_as_json, print_line
from edgehub.cli.tables import print_table
from edgehub.devices.token_file import (
    Role,
    Token,
    changing_tokens,
    check_name,
    check_tenant,
    read_tokens,
)

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = CredentialFile("tokens", "web.token_file", lambda settings: settings.web.token_file)


@click.group(cls=CommandGroup)
def token() -> None:
    """Add, list and remove tokens of the HTTP API.

    \b
    Example:
        edgehub token add grafana --role read --file tokens.jsonl
    """  # noqa: D301 - \b is click's sign for lines that stay as they are


@token.command()
@click.argument("name", callback=checked(check_name))
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.READ.value,
    show_default=True,
    help="Role; write includes reading.",
)
@click.option(
    "--tenant",
    metavar="ORG/APPLICATION",
    callback=checked(check_tenant),
    help="Restrict the token to the routes of one tenant.",
)
@_FILE.option
@click.pass_obj
def add(
    obj: dict[str, Any] | None, name: str, role: str, tenant: str | None, file: Path | None
) -> None:
    """Add a token and print it, once: the file keeps its hash alone."""
    path = _FILE.path(file, obj)
    entry, text = Token.new(name, Role(role), tenant)
    with changing_tokens(path) as tokens:
        if name in tokens:
            raise click.ClickException(
                f"{name} exists already; remove it first, or choose another name"
            )
        tokens[name] = entry
    print_line(text)
    print_line(
        f"added {name}, role {role}; a running hub takes it over at reload. "
        "The token is not shown again",
        err=True,
    )


@token.command()
@click.argument("name")
@_FILE.option
@click.pass_obj
def remove(obj: dict[str, Any] | None, name: str, file: Path | None) -> None:
    """Remove a token; a running hub refuses it from its next reload on."""
    path = _FILE.path(file, obj)
    with changing_tokens(path) as tokens:
        if name not in tokens:
            raise click.ClickException(f"{name} is not in {path}; `token list` shows what is")
        del tokens[name]
    print_line(f"removed {name}; a running hub refuses it after a reload", err=True)


@token.command("list")
@_FILE.option
@json_option
@click.pass_obj
def list_tokens(obj: dict[str, Any] | None, file: Path | None) -> None:
    """List tokens by name, never their hashes."""
    entries = read_tokens(_FILE.path(file, obj)).values()
    document = [{"name": each.name, "role": each.role, "tenant": each.tenant} for each in entries]
    end_as_json(document)
    tenants = any(entry.tenant is not None for entry in entries)
    print_table(
        ("name", "role", *(["tenant"] if tenants else [])),
        (
            (entry.name, entry.role, *([entry.tenant or "-"] if tenants else []))
            for entry in entries
        ),
        empty="there are no tokens",
    )
