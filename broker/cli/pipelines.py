"""Shell: `kafka-ds pipelines`: typed tables of topics, kept by Spark."""

from __future__ import annotations

from importlib.util import find_spec

import click

from broker.cli.options import Mistake, Target, cluster_options


@click.group()
def pipelines() -> None:
    """Keep typed tables of topics, by Spark."""


@pipelines.command("run")
@click.option(
    "--lake", metavar="DIR", help="lake.uri: a folder or s3://... Default: the cluster's."
)
@click.option("--once", is_flag=True, help="Take every table to its topic's present end, and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="From the beginning of one round to that of the next.",
)
@click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs: its master URL."
)
@cluster_options
def run(target: Target, lake: str | None, once: bool, interval: float, master: str) -> None:
    """Keep the tables of topics with lake.table.value.format.

    <lake>/tables/<topic> has a column for each field, <lake>/tables/<topic>__errors what did not fit.
    It runs until it is stopped (Ctrl-C), and notices settings that are made meanwhile. Run one of it:
    it continues where the tables are. Needs PySpark and Java.

    \b
    Examples:
      kafka-ds topic alter orders --config lake.table.value.format=json
      kafka-ds pipelines run --once --lake data/lake
      kafka-ds pipelines run --bootstrap-server broker-1:9092 --lake s3://bucket/lake
    """
    if find_spec("pyspark") is None:
        raise Mistake("pipelines need PySpark: install kafka-ds with its extra `spark`")
    from spark_conf.jars import JarsUnavailable
    from spark_conf.java import JavaUnusable
    from spark_conf.pipelines import main

    with target.admin() as admin:  # Told before a JVM is started.
        where = lake or target.lake_of(admin)
    try:
        failed = main.run(
            target.client_options(), where, once=once, interval_s=interval, master=master
        )
    except (JarsUnavailable, JavaUnusable) as problem:
        raise Mistake(str(problem)) from None
    if failed:
        raise click.exceptions.Exit(1)
