"""Shell: `kafka-ds catalog`: registers topics' tables in a Hive metastore or Unity Catalog."""

from __future__ import annotations

import click

from broker.cli.options import ClusterTarget, CommandError, cluster_options
from broker.cli.rounds import keep


@click.group()
def catalog() -> None:
    """Keep topics' tables registered in a catalog."""


@catalog.command("sync", short_help="Register topics' tables, and drop those of deleted topics.")
@click.argument("address")
@click.option(
    "--lake", metavar="DIR", help="lake.uri, as readers address it. Default: the cluster's."
)
@click.option(
    "--prefix",
    default="kafka",
    show_default=True,
    metavar="NAME",
    help="The prefix of schema names.",
)
@click.option("--once", is_flag=True, help="Synchronize once and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="The pause between two rounds.",
)
@cluster_options
def sync(
    target: ClusterTarget, address: str, lake: str | None, prefix: str, once: bool, interval: float
) -> None:
    """Register topics' tables in the catalog at ADDRESS, and keep it up to date with topics and columns.

    thrift://host:9083 is a Hive metastore; unity+http://host:8080/catalog is a catalog of Unity Catalog, whose token
    is in $KAFKA_DS_UNITY_TOKEN. Topics' own tables are in the schema kafka_topics, typed tables in
    kafka_tables. When a topic is deleted, its tables are dropped; files stay. Other tables are not changed.

    \b
    Examples:
      kafka-ds catalog sync thrift://metastore:9083
      kafka-ds catalog sync unity+https://unity.example.com/main --once
    """
    from kafka_ds.catalogs.registrar import registrar_at
    from kafka_ds.errors import OptionError

    where = target.lake_uri(lake)
    try:
        registrar = registrar_at(address, where, target.client_options(), prefix=prefix)
    except OptionError as problem:
        raise CommandError(str(problem)) from None
    keep(registrar.sync, once=once, interval_s=interval)
