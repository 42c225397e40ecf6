"""One Spark session for all tests of the report, and one run over many small hubs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.sql import SparkSession

from analytics import job
from analytics.args import parse_args
from analytics.java import find_java_home
from analytics.session import adapt, class_path, java_options
from tests.support.report import DATE, Results
from tests.support.report_days import write_export

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session that starts quickly and writes nowhere but into its own folder."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, folder))
    settings = {
        "spark.driver.extraClassPath": class_path(Path(pyspark.__file__).parent),
        "spark.driver.extraJavaOptions": " ".join(java_options(0)),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # What a small day has, for the tests of single questions too.
    adapt(session, 0)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export with hubs by hand and simulated ones; no test changes it."""
    folder = tmp_path_factory.mktemp("export")
    write_export(folder)
    return folder


@pytest.fixture(scope="session")
def results(spark: SparkSession, export: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return what one run over the whole export wrote."""
    output = tmp_path_factory.mktemp("results")
    args = parse_args([f"--input={export}", f"--output={output}", f"--date={DATE}"])
    assert job.run(spark, args) == 0
    found = Results(output)
    assert found.metrics["quarantined"] == found.metrics["copies"] == 0
    return found
