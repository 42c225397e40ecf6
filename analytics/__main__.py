"""`python -m analytics`: run the job on this machine with the Spark that is installed there.

Owns what Spark needs here: Java, memory, number of cores. The job's own arguments are passed on
as they are, so that both ways to run it differ in nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics.args import parse_args
from analytics.errors import AnalyticsError
from analytics.java import find_java_home
from analytics.session import class_path, java_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from analytics.args import JobArgs

MASTER: Final = "local[*]"
MEMORY: Final = "2g"
_FOLDERS_MAX: Final = 100_000
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]", re.ASCII | re.IGNORECASE)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_STOPS: Final = (signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    launch = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    launch.add_argument("--master", default=MASTER, help=f"Spark master; {MASTER} by default")
    launch.add_argument(
        "--memory", type=_memory, default=MEMORY, help=f"heap for Java; {MEMORY} by default"
    )
    args = parse_args(given, launch)
    options, rest = launch.parse_known_args(given)
    with tempfile.TemporaryDirectory(prefix="edgehub-report-") as scratch:
        try:
            environment = _environment(os.environ, Path(scratch))
        except AnalyticsError as error:
            print(f"analytics: {error}", file=sys.stderr)  # noqa: T201 - for people
            return error.exit_code
        # Through bin/spark-submit the job's messages would come out as results, on standard output.
        home = Path(environment["SPARK_HOME"])
        settings = _settings(options, scratch, home, size=_size(args))
        environment["PYSPARK_SUBMIT_ARGS"] = shlex.join([*settings, "pyspark-shell"])
        return _run([sys.executable, "-m", "analytics.job", *rest], environment)


def _memory(text: str) -> str:
    if not _MEMORY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 2g or 512m")
    return text


def _environment(given: Mapping[str, str], scratch: Path) -> dict[str, str]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        install = "pip install -c constraints.txt -e '.[spark]'"
        raise AnalyticsError(f"the report needs PySpark: {install}")
    root = str(Path(__file__).parents[1])
    return {
        **given,
        "JAVA_HOME": str(find_java_home(given, scratch)),
        "SPARK_HOME": str(Path(spec.origin).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, given.get("PYTHONPATH")])),
        # A gateway's host name often has no address, and nothing here is for other machines.
        "SPARK_LOCAL_IP": given.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }


def _size(args: JobArgs) -> int | None:
    """Return the bytes of all dates, None if only Hadoop knows them."""
    if _URL.match(args.input):
        return None
    folders = (Path(args.input, f"date={day.date}") for day in args.each_day())
    files = (file for folder in folders for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _settings(
    options: argparse.Namespace, scratch: str, home: Path, *, size: int | None
) -> list[str]:
    cores = os.cpu_count() or 1
    logging = Path(__file__).with_name("log4j2.properties").as_uri()
    java = [*java_options(size), f"-Dlog4j2.configurationFile={logging}"]
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": class_path(home),
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": str(max(4, 4 * cores)),
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if size is not None:
        # Folders of this machine are listed by the driver: a job costs more than all of them.
        settings["spark.sql.sources.parallelPartitionDiscovery.threshold"] = str(_FOLDERS_MAX)
    made = ["--master", options.master, "--driver-memory", options.memory]
    for name, value in settings.items():
        made += ["--conf", f"{name}={value}"]
    return made


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 - our own command

        def stop(number: int, frame: FrameType | None) -> None:
            del number, frame
            process.terminate()

        before = {number: signal.signal(number, stop) for number in _STOPS}
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # The terminal has interrupted the job too; it ends by itself.
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if code >= 0:
        return code
    ended = signal.Signals(-code)
    hint = "; out of memory?" if ended == signal.SIGKILL else ""
    print(f"analytics: the job was ended by {ended.name}{hint}", file=sys.stderr)  # noqa: T201 - for people
    return AnalyticsError.exit_code


if __name__ == "__main__":
    sys.exit(main())
