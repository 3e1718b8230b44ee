"""Shell: `kafka-ds cluster`: brokers, controller and unhealthy partitions; unregisters brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from broker.cli.balance import balance
from broker.cli.options import ClusterTarget, CommandError, cluster_options, json_option
from broker.cli.output import print_facts, print_json, print_rows
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_ds.client.admin import PartitionDescription, TopicDescription

SHOWN_MAX = 50


@click.group()
def cluster() -> None:
    """Look at the cluster, balance it, unregister brokers."""


@cluster.command("status", short_help="Show brokers, controller and unhealthy partitions.")
@json_option
@cluster_options
def status(target: ClusterTarget, as_json: bool) -> None:
    """Show brokers, controller, and partitions that are under-replicated or offline.

    The exit status is 0 even if something is wrong; `--json` has "healthy".

    \b
    Examples:
      kafka-ds cluster status
      kafka-ds cluster status --json --bootstrap-server broker:9092
    """
    with target.admin() as admin:
        found = admin.describe_cluster()
        topics = admin.describe_topics()
    offline = _rows(topics.values(), lambda each: each.is_offline)
    under = _rows(topics.values(), lambda each: each.is_under_replicated and not each.is_offline)
    led = [p.leader for each in topics.values() for p in each.partitions]
    held = [r for each in topics.values() for p in each.partitions for r in p.replicas]
    brokers = [
        {
            "id": each.node_id,
            "address": f"{each.host}:{each.port}",
            "rack": each.rack,
            "state": "fenced" if each.is_fenced else "alive",
            "controller": each.node_id == found.controller_id,
            "leads": led.count(each.node_id),
            "replicas": held.count(each.node_id),
        }
        for each in found.brokers
    ]
    fenced = [each.node_id for each in found.brokers if each.is_fenced]
    facts = {
        "cluster_id": found.cluster_id,
        "controller": found.controller_id if found.controller_id >= 0 else None,
        "topics": len(topics),
        "partitions": len(led),
        "under_replicated": len(under),
        "offline": len(offline),
        "fenced": fenced,
        "healthy": not (offline or under or fenced),
    }
    if as_json:
        lists = {"under_replicated_partitions": under, "offline_partitions": offline}
        print_json({**facts, "brokers": brokers, **lists})
        return
    print_facts({name.replace("_", " "): value for name, value in facts.items()})
    click.echo()
    print_rows(brokers, tuple(brokers[0]) if brokers else ("id",), as_json=False)
    for title, rows in (("offline", offline), ("under-replicated", under)):
        if rows:
            click.echo(f"\n{title} partitions:")
            columns = ("topic", "partition", "leader", "replicas", "isr")
            print_rows(rows[:SHOWN_MAX], columns, as_json=False)
            if len(rows) > SHOWN_MAX:
                click.echo(f"and {len(rows) - SHOWN_MAX} more (--json has all)")


def _rows(topics: Iterable[TopicDescription], wanted: Any) -> list[dict[str, Any]]:
    def row(topic: TopicDescription, each: PartitionDescription) -> dict[str, Any]:
        return {
            "topic": topic.name,
            "partition": each.partition,
            "leader": each.leader if each.leader >= 0 else None,
            "replicas": list(each.replicas),
            "isr": list(each.isr),
        }

    return [row(topic, each) for topic in topics for each in topic.partitions if wanted(each)]


cluster.add_command(balance)


@cluster.command("unregister", short_help="Unregister a broker that will not come back.")
@click.option(
    "--id",
    "broker_id",
    type=click.IntRange(min=0),
    required=True,
    metavar="N",
    help="The broker's node.id.",
)
@json_option
@cluster_options
def unregister(target: ClusterTarget, broker_id: int, as_json: bool) -> None:
    """Unregister a broker that will not come back, so that the cluster forgets it.

    The broker must be stopped, and no partition may have a replica on it: reassign its partitions first, with Kafka's
    kafka-reassign-partitions. Only topics that you may describe are looked at, so do this as a user who may describe
    all. Kafka's own kafka-cluster unregister does the same without these checks.

    \b
    Example:
      kafka-ds cluster unregister --id 3
    """
    with target.admin() as admin:
        brokers = admin.describe_cluster().brokers
        if any(each.node_id == broker_id and not each.is_fenced for each in brokers):
            raise CommandError(
                f"broker {broker_id} is alive and would register again: stop it first"
            )
        topics = admin.describe_topics()
        held = [
            TopicPartition(topic.name, each.partition)
            for topic in topics.values()
            for each in topic.partitions
            if broker_id in each.replicas
        ]
        if held:
            raise CommandError(
                f"broker {broker_id} still has replicas of {counted(len(held), 'partition')}, the first is {held[0]}: "
                "reassign them first"
            )
        admin.unregister_broker(broker_id)
    if as_json:
        print_json({"id": broker_id, "unregistered": True, "topics_seen": len(topics)})
    else:
        click.echo(
            f"broker {broker_id} is no longer registered; it had no replica of the "
            f"{counted(len(topics), 'topic')} that you may describe"
        )
