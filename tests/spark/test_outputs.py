"""What is written has the columns and keys of its schema; and the table of links, on a few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from analytics import outputs
from analytics.errors import AnalyticsError
from analytics.transforms.outages import links, outages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.report import Results

pytestmark = pytest.mark.timeout(300)

ALWAYS = outputs.TABLES.keys() - {"what_if"}
FILLED = ALWAYS - {"quarantine"}


@pytest.mark.parametrize("name", sorted(FILLED))
def test_a_table_has_its_schema_and_key(spark: SparkSession, results: Results, name: str):
    """In Parquet and, by names, in CSV; no two rows have one key."""
    table = outputs.TABLES[name]
    written = spark.read.parquet(str(results.folder(name)))
    assertSchemaEqual(written.schema, table.schema, ignoreNullable=True)
    [text] = (results.output / "csv" / name / f"date={results.date}").glob("*.csv")
    assert text.read_text("utf-8").partition("\n")[0].split(",") == table.schema.names
    keys = ", ".join(f'"{column}"' for column in table.key)
    rows = f"SELECT {keys} FROM read_parquet('{results.folder(name)}/*.parquet')"
    assert duckdb.sql(f"{rows} GROUP BY ALL HAVING count(*) > 1").fetchall() == []


def test_all_tables_are_written(results: Results):
    """Those of the schemas, and no others; answers where something was asked."""
    assert results.metrics["tables"].keys() == ALWAYS


def test_other_columns_are_refused(spark: SparkSession):
    """A column of another type, one that is missing, another order: named, before a write."""
    schema = outputs.TABLES["unserved"].schema
    for fields, named in (
        ([*schema.fields[:2], StructField("times", IntegerType()), schema.fields[3]], "times int"),
        (schema.fields[:3], "length_ms bigint"),
        ([*schema.fields[2:], *schema.fields[:2]], "their order"),
    ):
        with pytest.raises(AnalyticsError, match=f"table unserved was not written.*{named}"):
            outputs.check("unserved", spark.createDataFrame([], StructType(fields)))


@pytest.fixture(scope="module")
def known(spark: SparkSession) -> DataFrame:
    """Return the states of a hub that stops while its one link is down, and of a quiet hub."""
    names = "hub string, endpoint string, hub_ms bigint, commit bigint, seq bigint, day_ms bigint"
    rows = [
        ("a", "upstream", 1_000, -1, -1, 0, True, True),
        ("a", "upstream", 3_000, 1, 0, 2_000, False, True),
        ("a", "upstream", 4_000, 2, 0, 3_000, False, False),
        ("a", "upstream", 6_000, 3, 0, 5_000, False, True),
        ("a", "upstream", 9_000, 4, 0, 8_000, True, True),
        ("b", "upstream", 5_000, -1, -1, 0, True, True),
    ]
    return spark.createDataFrame(rows, f"{names}, link boolean, running boolean")


def test_times_of_links_are_added_up(spark: SparkSession, known: DataFrame):
    """Up to the end of the day; while the hub is off its link is not down."""
    ends = spark.createDataFrame([("a", 11_000), ("b", 5_000)], "hub string, hub_ms bigint")
    expected = [
        ("a", "upstream", 10_000, 8_000, 4_000, 2, 3_000),
        ("b", "upstream", 0, 0, 0, 0, 0),
    ]
    schema = outputs.TABLES["links"].schema
    assertDataFrameEqual(links(known, ends), spark.createDataFrame(expected, schema))


def test_what_changes_nothing_is_no_outage(known: DataFrame):
    """A hub that stops while its link is down was not served before either."""
    turns = [(row["hub"], row["hub_ms"], row["up"]) for row in outages(known).collect()]
    assert sorted(turns) == [
        ("a", 1_000, True),
        ("a", 3_000, False),
        ("a", 9_000, True),
        ("b", 5_000, True),
    ]


def test_links_of_days_by_hand(results: Results):
    """A link that was cut once, and a hub that was off for half an hour."""
    [cut] = results.table("links", "hub = 'cut-link'")
    assert (cut["down_ms"], cut["downs"], cut["longest_down_ms"]) == (2_370_000, 1, 2_370_000)
    assert cut["running_ms"] == cut["known_ms"]
    [off] = results.table("links", "hub = 'restarted'")
    assert off["known_ms"] - off["running_ms"] == 1_800_000
    assert off["down_ms"] == 0
