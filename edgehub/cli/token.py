"""`edgehub token`: the tokens file of the HTTP API.

Works on the file and asks no daemon, like `edgehub identity`; a running hub takes changes over at
its next reload.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from edgehub.cli.tables import new_table, print_table
from edgehub.devices.token_file import (
    Role,
    Token,
    changing_tokens,
    check_name,
    check_tenant,
    read_tokens,
)
from edgehub.errors import ConfigError
from edgehub.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE: Final = click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Tokens file; absent = web.token_file of the settings.",
)


def _checked(
    check: Callable[[object], str | None],
) -> Callable[[click.Context, click.Parameter, object], str | None]:
    def callback(_ctx: click.Context, _parameter: click.Parameter, value: object) -> str | None:
        try:
            return check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


@click.group()
def token() -> None:
    """Add, list and remove tokens of the HTTP API.

    Example: edgehub token add grafana --role read --file tokens.jsonl
    """


@token.command()
@click.argument("name", callback=_checked(check_name))
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.READ.value,
    show_default=True,
    help="write includes reading.",
)
@click.option(
    "--tenant",
    metavar="ORG/APPLICATION",
    callback=_checked(check_tenant),
    help="Confine it to the routes of one tenant; absent = the whole hub.",
)
@_FILE
@click.pass_obj
def add(
    obj: dict[str, Any] | None, name: str, role: str, tenant: str | None, file: Path | None
) -> None:
    """Add a token and print it, once: the file keeps its hash alone."""
    path = _path(file, obj)
    entry, text = Token.new(name, Role(role), tenant)
    with changing_tokens(path) as tokens:
        if name in tokens:
            msg = f"{name} exists already; remove it first, or choose another name"
            raise click.ClickException(msg)
        tokens[name] = entry
    click.echo(text)
    click.echo(
        f"added {name}, role {role}; a running hub takes it over at reload. "
        "The token is not shown again",
        err=True,
    )


@token.command()
@click.argument("name")
@_FILE
@click.pass_obj
def remove(obj: dict[str, Any] | None, name: str, file: Path | None) -> None:
    """Remove a token; a running hub refuses it from its next reload on."""
    path = _path(file, obj)
    with changing_tokens(path) as tokens:
        if name not in tokens:
            msg = f"{name} is not in {path}; `token list` shows what is"
            raise click.ClickException(msg)
        del tokens[name]
    click.echo(f"removed {name}; a running hub refuses it after a reload", err=True)


@token.command("list")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_obj
def list_tokens(obj: dict[str, Any] | None, file: Path | None, as_json: bool) -> None:
    """List tokens by name, never their hashes."""
    entries = read_tokens(_path(file, obj)).values()
    if as_json:
        document = [
            {"name": entry.name, "role": entry.role, "tenant": entry.tenant} for entry in entries
        ]
        click.echo(json.dumps(document, indent=2))
        return
    tenants = any(entry.tenant is not None for entry in entries)
    table = new_table("name", "role", *(["tenant"] if tenants else []))
    for entry in entries:
        table.add_row(entry.name, entry.role, *([entry.tenant or "-"] if tenants else []))
    print_table(table)


def _path(file: Path | None, obj: dict[str, Any] | None) -> Path:
    path = file or load_settings((obj or {}).get("config")).web.token_file
    if path is None:
        msg = "no tokens file: give --file, or set web.token_file in the settings"
        raise click.UsageError(msg)
    if not path.parent.is_dir():
        raise ConfigError(str(path), "its folder does not exist", f"mkdir -p {path.parent}")
    return path
