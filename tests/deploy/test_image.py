"""The Dockerfile: what every orchestrator relies on. `make soak` builds it, and starts the hub."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path

import click

import edgehub
from edgehub.cli.main import cli
from tests.support.dockerfile import environment, exec_form, read_stages, values

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Dockerfile"
STAGES = read_stages(FILE)
BUILD, IMAGE = STAGES


def test_all_stages_have_one_base_that_can_be_pinned() -> None:
    """A release gives it with its digest; the environment needs the same Python in both."""
    assert [stage[0][1].split()[0] for stage in STAGES] == ["${BASE}", "${BASE}"]
    default = re.search(r"^ARG BASE=(\S+)$", FILE.read_text("utf-8"), re.MULTILINE)
    assert default is not None
    assert re.fullmatch(r"\S+:3\.\d+-slim-\w+", default[1])


def test_the_image_holds_the_environment_and_no_sources() -> None:
    """Build tools and the checkout stay behind."""
    assert values(IMAGE, "COPY") == ["--from=build /opt/edgehub /opt/edgehub"]
    assert values(IMAGE, "ADD") == values(BUILD, "ADD") == []


def test_versions_are_those_tested_together() -> None:
    """Nothing is resolved anew, nothing is compiled, nothing comes without its hash."""
    (steps,) = values(BUILD, "RUN")
    packages, project = [step for step in steps.split(" && ") if "pip install" in step]
    assert "--require-hashes -r build.lock -r hub.lock" in packages
    assert "--only-binary :all:" in packages
    assert "--no-deps --no-build-isolation ." in project


def test_the_image_holds_a_bill_of_materials() -> None:
    """Written last, when the environment is what the image gets."""
    (steps,) = values(BUILD, "RUN")
    last = "/opt/edgehub/bin/python sbom.py edgehub > /opt/edgehub/sbom.cdx.json"
    assert steps.split(" && ")[-1].strip() == last


def test_the_hub_is_no_root_and_gets_the_signals() -> None:
    """A numeric user; exec form, so that SIGTERM reaches the hub and not a shell."""
    (user,) = values(IMAGE, "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    assert values(IMAGE, "STOPSIGNAL") == ["SIGTERM"]
    command = [*exec_form(*values(IMAGE, "ENTRYPOINT")), *exec_form(*values(IMAGE, "CMD"))]
    assert command == ["edgehub", "run"]
    (made,) = values(IMAGE, "RUN")
    assert f"-o {user.split(':')[0]} -g {user.split(':')[1]}" in made


def test_the_only_state_is_the_volume() -> None:
    """What systemd names for a service, the image names for the hub; the root may be read-only."""
    variables = environment(IMAGE)
    assert values(IMAGE, "VOLUME") == [variables["STATE_DIRECTORY"]]
    folders = [variables["STATE_DIRECTORY"], variables["RUNTIME_DIRECTORY"]]
    assert all(folder in values(IMAGE, "RUN")[0] for folder in folders)
    assert variables["CONFIGURATION_DIRECTORY"] == "/etc/edgehub"
    assert variables["CREDENTIALS_DIRECTORY"] == "/run/secrets"
    assert variables["PATH"].startswith("/opt/edgehub/bin:")


def test_health_is_what_the_hub_says_of_itself() -> None:
    """No further program in the image, and an option that exists."""
    (check,) = values(IMAGE, "HEALTHCHECK")
    words = exec_form(check.split(" CMD ")[1])
    assert words == ["edgehub", "status", "--quiet"]
    status = cli.get_command(click.Context(cli), "status")
    assert status is not None
    assert "--quiet" in [name for option in status.params for name in option.opts]


def test_the_labels_agree_with_the_project() -> None:
    """Of the version and the licence that the package has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    labels = " ".join(values(IMAGE, "LABEL"))
    assert f'image.licenses="{project["license"]}"' in labels
    assert f"VERSION={edgehub.__version__}" in values(IMAGE, "ARG")


def test_the_build_sees_what_it_copies_and_no_more() -> None:
    """Local settings, state and secrets never reach a build."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    copied = {name for rest in values(BUILD, "COPY") for name in rest.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)
    assert not any(fnmatch.fnmatch("deploy/secrets/x", name) for name in allowed)
