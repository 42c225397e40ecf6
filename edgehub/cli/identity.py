"""`edgehub identity`: who may sign in at the listener; edits the identities file.

Works on a file instead of asking the daemon: identities must exist before the first start. A
running hub takes changes over at its next reload.
"""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from edgehub.cli.arguments import checked, each, sender_id, stacked
from edgehub.cli.credentials import CredentialFile, json_option
from edgehub.cli.groups import CommandGroup
from edgehub.cli.output import end_as_json, print_line
from edgehub.cli.tables import print_table
from edgehub.devices.identity_file import (
    KEYS_MAX,
    UID_MAX,
    Identity,
    changing,
    check_pattern,
    check_right,
    parse_thumbprint,
    read_identities,
)
from edgehub.devices.passwords import PASSWORD_BYTES_MAX, PasswordHash
from edgehub.errors import ConfigError
from edgehub.routes.tenant import tenant_name
from edgehub.storage.credentials import read_access_key

if TYPE_CHECKING:
    from edgehub.mqtt.shared_access import SharedAccessKey

_FILE: Final = CredentialFile(
    "identities", "mqtt.identities_file", lambda settings: settings.mqtt.identities_file
)
_PASSWORD_FILE: Final = click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of one line, the password; default: asked for on a terminal, else standard input.",
)


_ID: Final = click.argument("identity_id", metavar="ID", callback=checked(sender_id))
_FIELDS: Final = {
    "keys": "key-file",
    "thumbprints": "thumbprint",
    "certificates": "certificate",
    "uid": "uid",
    "on_behalf": "on-behalf",
    "publish": "publish",
    "subscribe": "subscribe",
}
"""Fields of an identity, and the option that sets each."""
_AT_MOST_TWO: Final = frozenset({"keys", "thumbprints", "certificates"})


def _keys(
    _ctx: click.Context, _parameter: click.Parameter, files: tuple[Path, ...]
) -> tuple[SharedAccessKey, ...]:
    try:
        return tuple(read_access_key("--key-file", file) for file in files)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


_CREDENTIAL_OPTIONS: Final = stacked(
    click.option("--no-password", is_flag=True, help="It signs in without a password."),
    click.option(
        "--key-file",
        "keys",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        callback=_keys,
        help="File of one line, a key in base64 for its shared access signatures; twice at most.",
    ),
    click.option(
        "--thumbprint",
        "thumbprints",
        multiple=True,
        metavar="HEX",
        callback=checked(lambda values: tuple(map(parse_thumbprint, values))),
        help="SHA-1 or SHA-256 of the only certificate that it may show, of an authority"
        " of the listener; twice at most.",
    ),
    click.option(
        "--certificate",
        "certificates",
        multiple=True,
        metavar="FILE",
        help="A certificate in PEM that it may show, by no authority; relative to the folder"
        " of the identities file; twice at most.",
    ),
    click.option(
        "--uid",
        type=click.IntRange(0, UID_MAX),
        help="User whose processes are this module at the workload API.",
    ),
)
_RIGHTS_OPTIONS: Final = stacked(
    click.option(
        "--on-behalf",
        multiple=True,
        metavar="PATTERN",
        callback=checked(each(check_pattern)),
        help="Ids it may also speak for, with * ? []; repeatable. For child hubs.",
    ),
    click.option(
        "--publish",
        multiple=True,
        metavar="FILTER",
        callback=checked(each(check_right)),
        help="Local topics it may publish to, {id} = its own id; repeatable. Default of a new"
        " identity: all.",
    ),
    click.option("--no-publish", is_flag=True, help="It may publish to no local topic."),
    click.option(
        "--subscribe",
        multiple=True,
        metavar="FILTER",
        callback=checked(each(check_right)),
        help="Local topics it may subscribe to, {id} = its own id; repeatable.",
    ),
    click.option("--no-subscribe", is_flag=True, help="It may subscribe to no local topic."),
)


@click.group(cls=CommandGroup)
def identity() -> None:
    """Add, change, list and remove devices and modules that may sign in.

    \b
    Example:
        edgehub identity add press-1 --file identities.jsonl --password-file secret.txt
    """  # noqa: D301 - \b is click's sign for lines that stay as they are


@identity.command()
@_ID
@_FILE.option
@_PASSWORD_FILE
@_CREDENTIAL_OPTIONS
@_RIGHTS_OPTIONS
@click.option(
    "--tenant",
    default="",
    metavar="ORG/APPLICATION",
    callback=checked(lambda value: tenant_name(value) if value else ""),
    help="Tenant whose routes take its messages; default: the default tenant.",
)
@click.pass_obj
def add(
    obj: dict[str, Any] | None,
    /,
    *,
    identity_id: str,
    file: Path | None,
    password_file: Path | None,
    no_password: bool,
    tenant: str,
    **given: Any,
) -> None:
    """Add an identity, <device> or <device>/<module>."""
    path = _FILE.path(file, obj)
    if no_password and password_file is not None:
        raise click.UsageError("--no-password and --password-file: one or the other")
    changes = _changes(given)
    hashed = None if no_password else PasswordHash.of(_password(password_file))
    with changing(path) as identities:
        if identity_id in identities:
            raise click.ClickException(
                f"{identity_id} exists already; change its rights with `identity set`, its password"
                " with `identity passwd`"
            )
        entry = Identity(id=identity_id, password=hashed, tenant=tenant, **changes)
        identities[identity_id] = _checked(entry)
    print_line(f"added {identity_id}; a running hub takes it over at reload", err=True)


@identity.command("set")
@_ID
@_FILE.option
@_CREDENTIAL_OPTIONS
@click.option("--no-keys", is_flag=True, help="It signs in without shared access signatures.")
@click.option("--no-thumbprints", is_flag=True, help="Any certificate in its name counts.")
@click.option("--no-uid", is_flag=True, help="It has a socket at the workload API.")
@click.option("--no-certificates", is_flag=True, help="It has no certificates of its own.")
@_RIGHTS_OPTIONS
@click.option("--no-on-behalf", is_flag=True, help="It may speak for no other id.")
@click.option("--all-publish", is_flag=True, help="It may publish to all local topics.")
@click.option("--all-subscribe", is_flag=True, help="It may subscribe to all local topics.")
@click.pass_obj
def change(
    obj: dict[str, Any] | None,
    /,
    *,
    identity_id: str,
    file: Path | None,
    no_password: bool,
    **given: Any,
) -> None:
    """Set the rights and credentials that are named; everything else stays.

    What is given takes the place of what was: name all patterns of --on-behalf, old and new.
    `identity passwd` sets a password.
    """
    changes = _changes(given) | ({"password": None} if no_password else {})
    if not changes:
        raise click.UsageError("name what is to change, such as --on-behalf PATTERN")
    path = _FILE.path(file, obj)
    with changing(path) as identities:
        old = _existing(identities, identity_id, path)
        identities[identity_id] = _checked(replace(old, **changes))
    print_line(f"changed {identity_id}; a running hub takes it over at reload", err=True)


@identity.command()
@_ID
@_FILE.option
@_PASSWORD_FILE
@click.pass_obj
def passwd(
    obj: dict[str, Any] | None, identity_id: str, file: Path | None, password_file: Path | None
) -> None:
    """Set another password."""
    path = _FILE.path(file, obj)
    hashed = PasswordHash.of(_password(password_file))
    with changing(path) as identities:
        old = _existing(identities, identity_id, path)
        identities[identity_id] = replace(old, password=hashed)
    print_line(f"changed {identity_id}; a running hub takes it over at reload", err=True)


@identity.command()
@_ID
@_FILE.option
@click.pass_obj
def remove(obj: dict[str, Any] | None, identity_id: str, file: Path | None) -> None:
    """Remove an identity; a running hub closes its connection at reload."""
    path = _FILE.path(file, obj)
    with changing(path) as identities:
        _existing(identities, identity_id, path)
        del identities[identity_id]
    print_line(f"removed {identity_id}; a running hub takes it over at reload", err=True)


@identity.command("list")
@_FILE.option
@json_option
@click.pass_obj
def list_identities(obj: dict[str, Any] | None, file: Path | None) -> None:
    """List identities and their rights, never their hashes and keys."""
    entries = read_identities(_FILE.path(file, obj)).values()
    document = [
        {
            "id": entry.id,
            "password": entry.password is not None,
            "keys": len(entry.keys),
            "thumbprints": list(entry.thumbprints),
            "certificates": list(entry.certificates),
            "uid": entry.uid,
            "on_behalf": list(entry.on_behalf),
            "publish": None if entry.publish is None else list(entry.publish),
            "subscribe": None if entry.subscribe is None else list(entry.subscribe),
            "tenant": entry.tenant or None,
            "disabled": entry.disabled,
        }
        for entry in entries
    ]
    end_as_json(document)
    tenants = any(entry.tenant for entry in entries)
    columns = ("id", "credentials", "on behalf of", "publishes to", "subscribes to", "state")
    rows = [
        (
            entry.id,
            _credentials(entry),
            " ".join(entry.on_behalf) or "-",
            _shown(entry.publish),
            _shown(entry.subscribe),
            "disabled" if entry.disabled else "enabled",
            *([entry.tenant or "-"] if tenants else []),
        )
        for entry in entries
    ]
    print_table((*columns, *(["tenant"] if tenants else [])), rows, empty="there are no identities")


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that options set; each by its own option, by "no", or by "all"."""
    changes: dict[str, Any] = {}
    for field, option in _FIELDS.items():
        name, value = field.replace("_", "-"), given.get(field)
        ways = {
            f"--all-{name}": (given.get(f"all_{field}"), None),
            f"--no-{name}": (given.get(f"no_{field}"), None if field == "uid" else ()),
            f"--{option}": (value not in (None, ()), value),
        }
        chosen = {way: meant for way, (is_given, meant) in ways.items() if is_given}
        if len(chosen) > 1:
            raise click.UsageError(f"{' and '.join(chosen)}: one or the other")
        if field in _AT_MOST_TWO and len(value or ()) > KEYS_MAX:
            raise click.UsageError(
                f"--{option}: at most {KEYS_MAX}, the one in use and the one that follows"
            )
        if chosen:
            (changes[field],) = chosen.values()
    return changes


def _checked(entry: Identity) -> Identity:
    if entry.thumbprints and entry.certificates:
        raise click.UsageError(
            "--thumbprint and --certificate: a file needs no thumbprint; --no-.. removes one"
        )
    return entry


def _credentials(entry: Identity) -> str:
    found = [
        *(["password"] if entry.password is not None else []),
        *(["keys"] if entry.keys else []),
        *(["thumbprint"] if entry.thumbprints else []),
        *(["certificate"] if entry.certificates else []),
    ]
    return ", ".join(found) or "-"


def _shown(filters: tuple[str, ...] | None) -> str:
    return "all" if filters is None else " ".join(filters) or "none"


def _existing(identities: dict[str, Identity], identity_id: str, path: Path) -> Identity:
    entry = identities.get(identity_id)
    if entry is None:
        raise click.ClickException(f"{identity_id} is not in {path}; `identity list` shows what is")
    return entry


def _password(password_file: Path | None) -> bytes:
    if password_file is not None:
        password = password_file.read_bytes()
    elif sys.stdin.isatty():
        answer: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        password = answer.encode()
    else:
        # A line of the greatest length with its end, and what makes a further one.
        password = sys.stdin.buffer.read(PASSWORD_BYTES_MAX + 3)
    # Editors and shells on Windows put a byte order mark in front.
    password = password.removeprefix(BOM_UTF8)
    lines = [line.removesuffix(b"\r") for line in password.split(b"\n")]
    if sum(map(bool, lines)) > 1:
        raise click.ClickException(
            "the password is more than one line; give it once, on one line that ends the input"
        )
    password = lines[0]
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise click.ClickException(
            f"the password has {len(password)} bytes, allowed are 1 to {PASSWORD_BYTES_MAX} "
            "(give --password-file, or write it to the standard input)"
        )
    if b"\0" in password:
        raise click.ClickException(
            "the password holds a NUL byte; write it without, as UTF-8 text (a file in UTF-16 has"
            " a NUL next to each letter)"
        )
    return password
