"""Folders and whole files through Hadoop, so that any URL that Spark knows will do.

Owns the few calls into the session's virtual machine. Whole files fit into memory: a page, a
summary, a table as text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from analytics.errors import AnalyticsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PATTERN: Final = re.compile(r"([\\{}\[\]*?])")


_PIECE: Final = 1 << 20
"""Bytes that are handed to Java at a time."""


def literal(path: str) -> str:
    """Return a path so that Hadoop takes it for itself and not for a pattern."""
    return _PATTERN.sub(r"\\\1", path)


class Files:
    """Access to the file systems of a session."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        jvm = context._jvm  # noqa: SLF001 - Spark has no public door to Hadoop's file systems
        if jvm is None:
            raise AnalyticsError("the session has no Java gateway; run the job with spark-submit")
        self._path = jvm.org.apache.hadoop.fs.Path
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001 - see above

    def exists(self, url: str) -> bool:
        """Return whether a file or folder is there."""
        path, system = self._open(url)
        return bool(system.exists(path))

    def glob(self, pattern: str) -> list[str]:
        """List what matches a pattern, in order. Each match costs a call."""
        path, system = self._open(pattern)
        return sorted(str(found.getPath().toString()) for found in system.globStatus(path) or ())

    def delete(self, url: str) -> None:
        """Remove a folder with all that is in it; it may be absent."""
        path, system = self._open(url)
        system.delete(path, True)

    def write(self, url: str, content: bytes) -> None:
        """Write a file whole: it appears under its name when its last byte is there."""
        path, system = self._open(url)
        draft = self._path(f"{path.getParent()}/.{path.getName()}.draft")
        stream = system.create(draft, True)
        try:
            for at in range(0, len(content), _PIECE):
                stream.write(bytearray(content[at : at + _PIECE]))
        finally:
            stream.close()
        system.delete(path, False)
        if not system.rename(draft, path):
            raise AnalyticsError(f"{url}: the file could not be put in its place")

    def _open(self, url: str) -> tuple[Any, Any]:
        path = self._path(url)
        return path, path.getFileSystem(self._configuration)
