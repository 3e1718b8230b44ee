"""Shell: `kafka-ds promote`: a copy of a lake in another region takes the first one's place."""

from __future__ import annotations

import click


@click.command(short_help="Let a copy of a lake take the place of the first one.")
@click.option("--lake", required=True, metavar="URI", help="The copy, which is written to.")
@click.option("--from", "first", metavar="URI", help="The first lake, which is fenced.")
@click.option(
    "--force",
    is_flag=True,
    help="Give up what has not arrived, and fence nothing if --from is missing.",
)
def promote(lake: str, first: str | None, force: bool) -> None:
    """Let a copy of a lake take the place of the first one, whose brokers stop and may write no more.

    Stop the replication before. With --from the first lake is fenced and the copy completed: nothing that is in the
    first lake is lost. If it cannot be reached, --force goes on with what has arrived and says what is missing; see to
    it that no broker of the first region runs. Records that were not in the lake yet are lost either way.

    It may be interrupted and run again. Afterwards run kafka-ds restore for each broker, with the copy as lake.uri.

    \b
    Examples:
      kafka-ds promote --lake s3://bucket-eu/lake --from s3://bucket-us/lake
      kafka-ds promote --lake s3://bucket-eu/lake --force
    """
    from broker.lake_store import open_exclusive, store_of
    from broker.promote import Promotion

    stores = {uri: store_of(uri, open_exclusive) for uri in (lake, first) if uri}
    Promotion(stores[lake], stores[first] if first else None, click.echo, is_forced=force).run()
