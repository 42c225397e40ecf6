"""The job that spark-submit runs: arguments, session, read, judge, ask, write, exit code.

The only place that makes a session. Names no master, no memory and no secrets: they come from
spark-submit or from `python -m analytics`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics import quality, readers, writers
from analytics.args import parse_args
from analytics.causes import reason
from analytics.errors import EXIT_INTERRUPTED, EXIT_PARTIAL, AnalyticsError, QualityError
from analytics.files import Files
from analytics.history import history
from analytics.hubs import expected_hubs, survey
from analytics.kept import keep
from analytics.page.page import pages
from analytics.phases import Phases
from analytics.prepared import draft, drafts, prepare, read_prepared
from analytics.session import adapt, is_small
from analytics.tables import share, tables
from analytics.transforms.stores import names_of_several, on_one_time, stores
from analytics.what_if.asked import ask
from analytics.what_if.scenario_file import read_scenarios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from analytics.args import JobArgs
    from analytics.hubs import Survey
    from analytics.quality import HubDay
    from analytics.what_if.scenarios import Scenario


_WORST_FIRST: Final = (AnalyticsError.exit_code, QualityError.exit_code, EXIT_PARTIAL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job with a session of its own and return its exit code."""
    args = parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        return _start(args)
    except KeyboardInterrupt:
        _say(args, "interrupted; the date is incomplete until it is run again")
        return EXIT_INTERRUPTED


def _start(args: JobArgs) -> int:
    try:
        spark = SparkSession.builder.appName(f"edgehub report {args.date}").getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        _say(args, f"Spark does not start: {reason(error)}")
        return AnalyticsError.exit_code
    except OSError as error:
        _say(args, f"Spark does not start: {error}; has localhost an address (/etc/hosts)?")
        return AnalyticsError.exit_code
    try:
        return run(spark, args)
    finally:
        with suppress(Py4JError, OSError):
            spark.stop()


def run(spark: SparkSession, args: JobArgs) -> int:
    """Report on each date.

    Args:
        spark: A session; its SQL settings are set as the job needs them.
        args: What to do.

    Returns:
        Exit code: 0 done, 1 failed, 5 no report can rest on the lines, 6 done without some hubs; of
        several dates the worst.
    """
    codes = {_run_day(spark, day) for day in args.each_day()}
    return next((code for code in _WORST_FIRST if code in codes), 0)


def _run_day(spark: SparkSession, args: JobArgs) -> int:
    try:
        metrics, without = (prepare if args.prepare else _report)(spark, args)
    except AnalyticsError as error:
        _say(args, str(error))
        return error.exit_code
    except (PySparkException, Py4JJavaError) as error:
        _say(args, reason(error))
        return AnalyticsError.exit_code
    except (Py4JError, OSError) as error:
        _say(args, f"Java has ended: {error}; out of memory?")
        return AnalyticsError.exit_code
    print(_summary(metrics))  # noqa: T201 - the one line that the job is asked for
    if not without:
        return 0
    _say(args, "\n".join(["the report is without:", *quality.named(without)]))
    return EXIT_PARTIAL


def _report(spark: SparkSession, args: JobArgs) -> tuple[dict[str, Any], list[HubDay]]:
    """Write the report on a date.

    Returns:
        Its metrics, and the hubs that it is without.
    """
    files = Files(spark)
    with drafts(files, args):
        return _report_on(spark, files, args)


def _report_on(
    spark: SparkSession, files: Files, args: JobArgs
) -> tuple[dict[str, Any], list[HubDay]]:
    phases = Phases()
    # What there is to read is found by reading a few lists of files.
    adapt(spark, 0)
    scenarios = [] if args.what_if is None else read_scenarios(spark, files, args.what_if)
    surveyed = survey(spark, files, args)
    expected = expected_hubs(spark, files, args)
    phases.end("survey")
    adapt(spark, surveyed.size)
    days = quality.surveyed(surveyed, expected)
    metrics: dict[str, Any] = {"date": args.date.isoformat(), "outcome": "empty", "lines": 0}
    lines = prepared = None
    if surveyed.folders:
        lines = prepared = read_prepared(spark, files, args, surveyed)
        if is_small(surveyed.size):
            if lines is None:
                lines = readers.read_lines(spark, surveyed, args)
            # In one partition no later question has to move rows, which halves the stages.
            lines = keep(lines.repartition(1), eager=False)
        elif lines is None:
            lines = draft(spark, surveyed, args)
        tally = readers.tally(lines, surveyed.doubtful).collect()
        repeated = {row["hub"] for row in tally if row["copies"]}
        days |= quality.counted(tally, readers.clones(lines, repeated).collect())
        phases.end("read")
        metrics["lines"] = sum(row["lines"] for row in tally)
        metrics["faults"] = quality.faults(tally)
    if lines is not None and metrics["lines"]:
        metrics |= _write(files, args, lines, surveyed, days, metrics, scenarios, phases)
    else:
        quality.check(days.values(), (), is_strict=args.strict)
        writers.clear(files, args)
        hubs = quality.hubs(spark, days.values())
        metrics["tables"] = writers.write_tables(files, args, {"hubs": hubs})
    metrics["prepared"] = prepared is not None
    metrics["hubs_by_state"] = dict(Counter(day.state for day in days.values()))
    phases.end("write")
    metrics["seconds"] = round(sum(phases.seconds.values()), 1)
    metrics["phases"] = phases.seconds
    text = json.dumps(metrics, indent=2) + "\n"
    files.write(writers.metrics_file(args), text.encode())
    return metrics, [day for day in days.values() if not day.is_sound]


def _write(
    files: Files,
    args: JobArgs,
    lines: DataFrame,
    surveyed: Survey,
    days: dict[str, HubDay],
    metrics: dict[str, Any],
    scenarios: list[Scenario],
    phases: Phases,
) -> dict[str, Any]:
    """Compute all tables of the sound hubs, judge the others, and write the date."""
    quarantined = sum(metrics["faults"].values())
    quarantine = lines.where(F.col("fault").isNotNull()).select("file", "fault", "line")
    if not quarantined:
        # Looking through all lines for none takes as long as for many.
        quarantine = quarantine.limit(0)
    good = readers.good_lines(lines)
    if cloned := [day.hub for day in days.values() if day.state == "cloned"]:
        good = good.where(~F.col("hub").isin(*cloned))
    twins: list[str] = []
    if surveyed.has_several_stores:
        known = stores(good).localCheckpoint(eager=True)
        good, twins = on_one_time(good, known), names_of_several(known)
    copies = sum(day.copies for day in days.values() if day.is_sound)
    shared = share(
        readers.without_copies(good) if copies else good,
        has_several_stores=surveyed.has_several_stores,
    )
    days |= quality.balanced(shared.balanced, days)
    quality.check(
        days.values(), quarantine.limit(quality.NAMED_MAX).collect(), is_strict=args.strict
    )
    phases.end("balance")
    unbalanced = [day.hub for day in days.values() if day.state == "unbalanced"]
    sound = shared.without(unbalanced)
    made = tables(sound, args)
    phases.end("questions")
    answered: dict[str, Any] = {}
    if args.asks_what_if:
        made["what_if"], answered = ask(
            sound.lines, scenarios, count=metrics["lines"], advise=args.advise
        )
        phases.end("what_if")
    writers.begin(files, args)
    metrics |= {
        "outcome": "done" if all(day.is_sound for day in days.values()) else "partial",
        "quarantined": quarantined,
        "copies": copies,
        "excluded_hubs": list(args.exclude_hubs),
        "hubs_of_one_name": twins,
        "starved_after_s": args.starved_after_s,
        "idle_after_s": args.idle_after_s,
        "what_if": answered,
    }
    spark = lines.sparkSession
    hubs = quality.hubs(spark, days.values())
    earlier = history(spark, files, args)
    with ThreadPoolExecutor(1, thread_name_prefix="pages") as pool:
        made_pages = pool.submit(pages, args, metrics.copy(), made, list(days.values()), earlier)
        all_tables = made | {"hubs": hubs, "quarantine": quarantine}
        written = writers.write_tables(files, args, all_tables, quarantined)
    content = made_pages.result()
    writers.write_pages(files, args, content.fleet, content.hubs)
    if answered.get("fragment"):
        fragment = json.dumps(answered["fragment"], indent=2) + "\n"
        files.write(writers.fragment_file(args), fragment.encode())
    return metrics | content.totals | {"tables": written}


def _summary(metrics: dict[str, Any]) -> str:
    """Put the metrics that fit on it into one line."""
    shown = (
        f"{name}={value}" for name, value in metrics.items() if isinstance(value, str | int | float)
    )
    return "report " + " ".join(shown)


def _say(args: JobArgs, reason: str) -> None:
    print(f"analytics: {args.date}: {reason}", file=sys.stderr)  # noqa: T201 - for people


if __name__ == "__main__":
    sys.exit(main())
