"""Shell: `kafka-ds pipelines`: maintains typed tables of topics with Spark."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Final

import click

from broker.cli.lake import Lake
from broker.cli.options import ClusterTarget, CommandError, cluster_options, topic_of
from kafka_ds.process.amounts import counted

_FORMAT: Final = "lake.table.value.format"
_lake_option = click.option(
    "--lake", metavar="DIR", help="lake.uri: a folder or s3://... Default: the cluster's."
)
_master_option = click.option(
    "--master", default="local[*]", show_default=True, help="Spark's master URL."
)
_registry_option = click.option(
    "--schema-registry",
    metavar="URL",
    default="",
    envvar="KAFKA_DS_SCHEMA_REGISTRY",
    show_envvar=True,
    help="The schema registry, for avro and protobuf. Default: the brokers' schema.registry.url.",
)


def _prepared(
    target: ClusterTarget, lake: str | None, topic: str | None = None
) -> tuple[ModuleType, str]:
    """The application module and the lake's address. Raises CommandError before a JVM starts.

    `topic`: it must have a typed table.
    """
    if find_spec("pyspark") is None:
        raise CommandError("pipelines need PySpark: install kafka-ds with its extra `spark`")
    from spark_conf.jars import JarsUnavailable, fetch
    from spark_conf.java import JavaUnusable, java_home
    from spark_conf.pipelines import main

    with target.admin() as admin:
        where = lake or target.lake_of(admin)
        Lake(where)  # Refuses a folder without the tables of a cluster.
        if topic is not None:
            topic_of(admin, topic)
            settings = admin.topic_settings([topic], [_FORMAT]).get(topic, {})
            if settings.get(_FORMAT) == "none":
                raise CommandError(
                    f"topic {topic} has no typed table: kafka-ds topic alter {topic} --config {_FORMAT}=json"
                )
    try:
        java_home()
        fetch("delta")
        main.avro_jars()
    except (JarsUnavailable, JavaUnusable) as problem:
        raise CommandError(str(problem)) from None
    return main, where


@click.group()
def pipelines() -> None:
    """Maintain typed tables of topics with Spark."""


@pipelines.command("run")
@_lake_option
@click.option("--once", is_flag=True, help="Process all present records and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between the starts of two rounds.",
)
@click.option("--iceberg", is_flag=True, help="Also maintain Iceberg metadata for all tables.")
@click.option(
    "--catalog",
    metavar="ADDRESS",
    default="",
    help="Also register the tables there, as catalog sync does.",
)
@_registry_option
@_master_option
@cluster_options
def run(
    target: ClusterTarget,
    lake: str | None,
    once: bool,
    interval: float,
    iceberg: bool,
    catalog: str,
    schema_registry: str,
    master: str,
) -> None:
    """Maintain typed tables (lake.table.value.format).

    <lake>/tables/<topic> has a column for each field, <lake>/tables/<topic>__errors has the records that do not fit.
    It runs until Ctrl-C and applies changed settings. Run only one at a time; it continues where the tables end. Needs
    PySpark and Java.

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
def replay(
    target: ClusterTarget, topic: str, lake: str | None, schema_registry: str, master: str
) -> None:
    """Process the records of a topic's errors table again.

    Those that fit now move to the typed table. Stop `pipelines run` first.

    \b
    Examples:
      kafka-ds pipelines replay orders --lake data/lake
    """
    main, where = _prepared(target, lake, topic)
    count = main.replay(
        target.client_options(), where, topic, master=master, registry_url=schema_registry
    )
    click.echo(f"replayed into the typed table of {topic}: {counted(count, 'record')}")
