"""Shell: `kafka-ds iceberg`: the lake's tables as Iceberg tables."""

from __future__ import annotations

from importlib.util import find_spec

import click

from broker.cli.options import ClusterTarget, CommandError, cluster_options
from broker.cli.rounds import keep


@click.group()
def iceberg() -> None:
    """Read the lake's Delta tables as Iceberg."""


@iceberg.command("sync", short_help="Maintain Iceberg metadata for the Delta tables.")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--lake", metavar="DIR", help="lake.uri: a folder or a bucket. Default: the cluster's."
)
@click.option("--once", is_flag=True, help="Synchronize every table once and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="The pause between two rounds.",
)
@click.option(
    "--catalog",
    default="",
    metavar="NAME",
    help="A catalog of PyIceberg's configuration. Default: the folder of each table.",
)
@cluster_options
def sync(
    target: ClusterTarget,
    topics: tuple[str, ...],
    lake: str | None,
    once: bool,
    interval: float,
    catalog: str,
) -> None:
    """Write Iceberg metadata for the Delta tables, and keep it up to date.

    No data is copied: an Iceberg table references the same Parquet files. It is in the folder `_iceberg` of its Delta
    table. Without topics, all tables are synchronized: topics' tables, typed tables and errors tables. No broker is
    needed if --lake is given. Needs PyIceberg.

    \b
    Examples:
      kafka-ds iceberg sync --once --lake data/lake
      kafka-ds iceberg sync orders --once --lake s3://bucket/lake
    """
    if find_spec("pyiceberg") is None:
        raise CommandError("Iceberg needs PyIceberg: install kafka-ds with its extra `iceberg`")
    from kafka_ds.delta.store.store import UnsupportedStore
    from kafka_ds.delta.store.uri import open_store
    from kafka_ds.errors import OptionError
    from kafka_ds.iceberg.lake_sync import LakeSync

    where = target.lake_uri(lake)
    try:
        store = open_store(where)
    except (UnsupportedStore, ValueError) as problem:
        raise CommandError(f"--lake {where}: {problem}") from None
    try:
        lake_sync = LakeSync(store, topics, catalog)
    except OptionError as problem:
        raise CommandError(f"--{problem}") from None
    keep(lake_sync.sync, once=once, interval_s=interval)
