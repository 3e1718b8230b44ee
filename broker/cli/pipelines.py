"""Shell: `kafka-ds pipelines`: typed tables of topics, kept by Spark."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import click

from broker.cli.options import Mistake, Target, cluster_options
from kafka_ds.process.amounts import counted

_lake_option = click.option(
    "--lake", metavar="DIR", help="lake.uri: a folder or s3://... Default: the cluster's."
)
_master_option = click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs: its master URL."
)
_registry_option = click.option(
    "--schema-registry",
    metavar="URL",
    default="",
    envvar="KAFKA_DS_SCHEMA_REGISTRY",
    show_envvar=True,
    help="The registry of schemas, for avro and protobuf.",
)


def _prepared(target: Target, lake: str | None) -> tuple[ModuleType, str]:
    """The application, and the lake's address. Raises Mistake before a JVM is started."""
    if find_spec("pyspark") is None:
        raise Mistake("pipelines need PySpark: install kafka-ds with its extra `spark`")
    from spark_conf.jars import JarsUnavailable, fetch
    from spark_conf.java import JavaUnusable, java_home
    from spark_conf.pipelines import main

    try:
        java_home()
        fetch("delta")
        main.avro_jars()
    except (JarsUnavailable, JavaUnusable) as problem:
        raise Mistake(str(problem)) from None
    with target.admin() as admin:
        return main, lake or target.lake_of(admin)


@click.group()
def pipelines() -> None:
    """Keep typed tables of topics, by Spark."""


@pipelines.command("run")
@_lake_option
@click.option("--once", is_flag=True, help="Take every table to its topic's present end, and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="From the beginning of one round to that of the next.",
)
@click.option("--iceberg", is_flag=True, help="Keep all tables as Iceberg tables, too.")
@click.option(
    "--catalog",
    metavar="ADDRESS",
    default="",
    help="Keep topics' tables registered there, as catalog sync does.",
)
@_registry_option
@_master_option
@cluster_options
def run(
    target: Target,
    lake: str | None,
    once: bool,
    interval: float,
    iceberg: bool,
    catalog: str,
    schema_registry: str,
    master: str,
) -> None:
    """Keep the tables of topics with lake.table.value.format.

    <lake>/tables/<topic> has a column for each field, <lake>/tables/<topic>__errors what did not fit.
    It runs until it is stopped (Ctrl-C), and notices settings that are made meanwhile. Run one of it:
    it continues where the tables are. Needs PySpark and Java.

    \b
    Examples:
      kafka-ds topic alter orders --config lake.table.value.format=json
      kafka-ds pipelines run --once --lake data/lake
      kafka-ds pipelines run --bootstrap-server broker-1:9092
    """
    main, where = _prepared(target, lake)
    options = target.client_options()
    syncs = main.background_syncs(where, options, iceberg=iceberg, catalog=catalog)
    if main.run(
        options,
        where,
        once=once,
        interval_s=interval,
        master=master,
        registry_url=schema_registry,
        syncs=syncs,
    ):
        raise click.exceptions.Exit(1)


@pipelines.command("replay")
@click.argument("topic")
@_lake_option
@_registry_option
@_master_option
@cluster_options
def replay(target: Target, topic: str, lake: str | None, schema_registry: str, master: str) -> None:
    """Read a topic's records again that are in its errors table.

    Those that fit now become rows as others, and leave the errors table. Stop `pipelines run` before.

    \b
    Examples:
      kafka-ds pipelines replay orders --lake data/lake
    """
    main, where = _prepared(target, lake)
    count = main.replay(
        target.client_options(), where, topic, master=master, registry_url=schema_registry
    )
    click.echo(f"replayed into the typed table of {topic}: {counted(count, 'record')}")
