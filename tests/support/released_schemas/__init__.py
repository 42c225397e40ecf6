"""Database files of released schemas, as SQL, and the way to make one: `python -m` this package.

`schema_<n>.sql` is a file that the hub left with `user_version` n. Before a release that changes
the schema, make the file of the new one; a file that was released is never changed. `hub_<n>/` is
the whole state of a hub of that version that was killed: `queue.db`, `state.db` and its id.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

FOLDER = Path(__file__).parent
PRAGMAS = ("auto_vacuum", "application_id", "user_version")


def path_of(version: int) -> Path:
    """Give the SQL of one version."""
    return FOLDER / f"schema_{version}.sql"


def dump(path: Path) -> str:
    """Write a stopped hub's file as SQL."""
    connection = sqlite3.connect(path)
    values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS]
    head = [f"PRAGMA {name} = {value};" for name, value in zip(PRAGMAS, values, strict=True)]
    text = "\n".join([*head, *connection.iterdump()]) + "\n"
    connection.close()
    return text


def restore(version: int, path: Path) -> None:
    """Make a hub's file of an older version."""
    connection = sqlite3.connect(path)
    connection.executescript(path_of(version).read_text("utf-8"))
    connection.close()


def restore_hub(version: int, data_dir: Path) -> None:
    """Write the state that a killed hub of an older version left into an empty folder."""
    source = FOLDER / f"hub_{version}"
    for name in ("queue", "state"):
        connection = sqlite3.connect(data_dir / f"{name}.db")
        connection.executescript((source / f"{name}.sql").read_text("utf-8"))
        connection.close()
    (data_dir / "hub_id").write_bytes((source / "hub_id").read_bytes())
