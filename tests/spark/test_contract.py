"""What a daemon writes is what the report reads: journal-format.md holds on both sides."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from analytics import readers
from analytics.args import JobArgs
from analytics.files import Files
from analytics.hubs import survey
from analytics.tables import share
from tests.support.daemon import Daemon
from tests.support.devices import Device

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CONFIG = """
data_dir = "data"
[mqtt]
port = 0
[upstream]
type = "file"
path = "out.jsonl"
[log]
format = "json"
[clock]
trust = "always"
"""


def publish(daemon: Daemon, numbers: range) -> None:
    """Publish messages and wait for their PUBACKs."""
    device = Device("dev1", daemon.mqtt_port)
    try:
        for number in numbers:
            device.publish("bulk", number)
        assert device.wait_in_flight_below(1, 10)
    finally:
        device.close()


def test_the_journal_of_a_daemon_closes(spark: SparkSession, tmp_path: Path):
    """Traffic, a kill and an orderly stop: no bad line, no copy, and every row is accounted."""
    daemon = Daemon(tmp_path, CONFIG)
    daemon.start()
    try:
        publish(daemon, range(40))
        daemon.kill()
        daemon.start()
        publish(daemon, range(40, 60))
        daemon.wait_until(
            lambda: sum(q["depth"] for q in daemon.call("queue list")["queues"]) == 0, 10
        )
        assert daemon.stop() == 0
        daemon.start()
        assert daemon.edgehub("journal", "export", "exported", "--close").returncode == 0
    finally:
        daemon.close()
    enqueued = 0
    for folder in sorted((tmp_path / "exported").glob("date=*")):
        args = JobArgs(
            input=str(tmp_path / "exported"),
            output="unused",
            date=date.fromisoformat(folder.name.removeprefix("date=")),
        )
        surveyed = survey(spark, Files(spark), args)
        # By its manifests each segment is whole, and no line is there twice.
        assert not surveyed.damaged
        assert not surveyed.doubtful
        lines = readers.read_lines(spark, surveyed, args)
        assert lines.where("fault IS NOT NULL").collect() == []
        balanced = share(readers.good_lines(lines), has_several_stores=False).balanced.collect()
        assert {row["state"] for row in balanced} == {"closed"}
        enqueued += sum(row["enqueued_rows"] for row in balanced)
    assert enqueued == 60
