"""The Dockerfile of the report: what it is built from, who runs it, and that its steps work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debian_root import add_packages
from tests.support.dockerfile import environment, exec_form, read_stages, values
from tests.support.image import REPORT, Builder, run_once
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE, Results
from tests.support.report_days import sends

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "report.Dockerfile"
(STAGE,) = read_stages(FILE)


def test_the_build_sees_what_it_copies_and_no_more() -> None:
    """Local settings, state and secrets never reach a build."""
    ignored = FILE.with_name(f"{FILE.name}.dockerignore")
    lines = ignored.read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert allowed == {name for rest in values(STAGE, "COPY") for name in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in allowed)


def test_it_runs_as_a_user_that_has_a_name() -> None:
    """The hub's number, since the export belongs to it; Java does without none."""
    made, install = values(STAGE, "RUN")
    (user,) = values(STAGE, "USER")
    hub = values(read_stages(ROOT / "deploy" / "Dockerfile")[-1], "USER")
    assert [user] == hub
    assert re.match(rf"useradd --uid {user.split(':')[0]} ", made)
    packages = [step for step in install.split(" && ") if "pip install" in step]
    assert [step.split(" -r ")[1].strip() for step in packages[:2]] == ["build.lock", "report.lock"]
    assert all("--require-hashes" in step for step in packages[:2])
    assert "--no-deps --no-build-isolation ." in packages[2]
    assert "sbom.py edgehub-report > /opt/edgehub/sbom.cdx.json" in install
    assert exec_form(*values(STAGE, "ENTRYPOINT")) == ["edgehub", "report"]
    assert environment(STAGE)["PATH"].startswith("/opt/edgehub/bin:")


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_its_steps_give_a_report_without_another_java(tmp_path: Path) -> None:
    """What the build copies and installs, in a folder; then a day, with no other Java on PATH."""
    source = tmp_path / "src"
    source.mkdir()
    for rest in values(STAGE, "COPY"):
        *names, _ = rest.split()
        for name in names:
            origin = ROOT / name
            if origin.is_dir():
                shutil.copytree(origin, source / name)
            else:
                shutil.copy(origin, source)
    place = str(tmp_path / "opt")
    steps = values(STAGE, "RUN")[1].replace("/opt/edgehub", place).replace("/src/*", str(source))
    steps = steps.replace("python3 ", f"{sys.executable} ")
    subprocess.run(["sh", "-ec", steps], cwd=source, check=True, timeout=900)
    journal = HandJournal(DATE)
    sends(journal, "10:00:00", "10:05:00")
    journal.write(tmp_path / "export")
    others = tmp_path / "bin"
    others.mkdir()
    command = [f"{place}/bin/edgehub", "report", DATE]
    folders = ["--input", str(tmp_path / "export"), "--output", str(tmp_path / "reports")]
    tools = ":".join([f"{place}/bin", str(others)])
    for tool in Path("/bin").iterdir():
        if not tool.name.startswith("java"):
            (others / tool.name).symlink_to(tool)
    given = {"PATH": tools, "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C.UTF-8")}
    subprocess.run([*command, *folders], check=True, timeout=300, env=given)
    assert Results(tmp_path / "reports").metrics["outcome"] == "done"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.geteuid() != 0, reason="a root folder and namespaces need root")
def test_the_image_reports_without_a_network(debian: Path, wheels: Path, tmp_path: Path) -> None:
    """Built by buildah, run as docs/howto/container.md says: read-only, as its user, own Java."""
    packages = tmp_path / "wheels"
    shutil.copytree(wheels, packages)
    add_packages(packages, "deploy/report.lock")
    builder = Builder(tmp_path / "images")
    builder.make_base(debian)
    config = builder.build(ROOT, packages, tmp_path / "pip.conf", of=REPORT)
    assert config["User"] == "10001:10001"
    journal = HandJournal(DATE)
    sends(journal, "10:00:00", "10:05:00")
    journal.write(tmp_path / "export")
    reports = tmp_path / "reports"
    reports.mkdir(mode=0o700)
    os.chown(reports, 10001, 10001)
    tmp_path.chmod(0o755)
    root = builder.root_of_container(of=REPORT)
    folders = ["--input", "/mnt/in", "--output", "/mnt/out"]
    done = run_once(root, config, [DATE, *folders], reads=tmp_path / "export", writes=reports)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"report date={DATE} outcome=done")
    results = Results(reports)
    assert results.metrics["outcome"] == "done"
    assert results.page.stat().st_uid == 10001
    assert list((Path(root) / "src").iterdir()) == []
    wrong = run_once(root, config, [DATE], reads=tmp_path / "export", writes=reports)
    assert wrong.returncode == 2
