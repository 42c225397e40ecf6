"""The example configurations are right as they stand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from edgehub.cli.identity import identity
from tests.support.certificates import Authority
from tests.support.command_line import edgehub

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
CREDENTIAL = "credential:"


@pytest.mark.parametrize("folder", sorted(EXAMPLES.iterdir()), ids=lambda folder: folder.name)
def test_an_example_has_no_faults(folder: Path, tmp_path: Path) -> None:
    """`edgehub config validate` where all credentials and an identity are there."""
    document = tomllib.loads((folder / "edgehub.toml").read_text("utf-8"))
    certificate, key = Authority(tmp_path).client("gateway")
    for name, kind in _credentials(document):
        files = {"certificate_file": certificate, "key_file": key}
        text = files[kind].read_text("utf-8") if kind in files else "secret"
        (tmp_path / name).write_text(text, "utf-8")
    identities = tmp_path / "identities"
    CliRunner().invoke(identity, ["add", "pump-7", "--file", str(identities)], input="secret\n")
    environment = {
        "CONFIGURATION_DIRECTORY": str(folder),
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    if "identities_file" in document.get("mqtt", {}):
        environment["EDGEHUB_MQTT__IDENTITIES_FILE"] = str(identities)
    done = edgehub("config", "validate", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no faults" in done.stdout


def test_no_example_holds_a_secret() -> None:
    """What people copy shows them how secrets are named."""
    files = [file for file in EXAMPLES.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".toml", ".json"}
    documents = [tomllib.loads(f.read_text("utf-8")) for f in files if f.suffix == ".toml"]
    assert sum(len(list(_credentials(document))) for document in documents) >= len(documents) - 1


def _credentials(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each credential, and the setting that names it."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _credentials(value)
        elif key.endswith(("password_file", "token_file", "key_file", "certificate_file")):
            assert value.startswith(CREDENTIAL), key
            yield value.removeprefix(CREDENTIAL), key
