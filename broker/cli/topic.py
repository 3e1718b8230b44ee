"""Shell: `kafka-ds topic`: list, create, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from broker.cli.options import (
    ClusterTarget,
    CommandError,
    cluster_options,
    json_option,
    no_such_topic,
    pairs,
    topic_of,
)
from broker.cli.output import print_facts, print_json, print_rows

if TYPE_CHECKING:
    from kafka_ds.client.admin import ConfigEntry, TopicDescription
    from kafka_ds.client.cluster import Cluster

_OWN = 1  # a setting's source: the topic itself


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@json_option
@cluster_options
def list_topics(target: ClusterTarget, internal: bool, as_json: bool) -> None:
    """List topics, without internal ones.

    Internal topics hold the state of Kafka's coordinators, of streams that write exactly once, and clients' metrics.

    \b
    Examples:
      kafka-ds topic list
      kafka-ds topic list --internal
      kafka-ds topic list --json --bootstrap-server broker:9092
    """
    with target.admin() as admin:
        found = admin.describe_topics()
    rows = [
        {
            "name": each.name,
            "partitions": len(each.partitions),
            "replication_factor": each.replication_factor,
            "under_replicated": sum(p.is_under_replicated for p in each.partitions),
            "offline": sum(p.is_offline for p in each.partitions),
            "internal": _is_internal(each),
        }
        for each in found.values()
        if internal or not _is_internal(each)
    ]
    columns = ["name", "partitions", "replication_factor", "under_replicated", "offline"]
    print_rows(rows, [*columns, "internal"] if internal else columns, as_json=as_json)


def _is_internal(topic: TopicDescription) -> bool:
    """Whether Kafka, or kafka-ds, keeps its own records in this topic."""
    from kafka_ds.sink.options import DECISIONS_TOPIC
    from kafka_ds.topic.names import CLIENT_METRICS

    return topic.is_internal or topic.name in (DECISIONS_TOPIC, CLIENT_METRICS)


@topic.command("create")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="N", help="Default: the brokers'."
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), metavar="N", help="Default: the brokers'."
)
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A setting; repeat it."
)
@click.option("--if-not-exists", is_flag=True, help="An existing topic is not an error.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be created.")
@cluster_options
def create_topics(
    target: ClusterTarget,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics.

    \b
    Examples:
      kafka-ds topic create orders --partitions 3
      kafka-ds topic create users --config cleanup.policy=compact
    """
    from kafka_ds.client.admin import BY_BROKER
    from kafka_ds.protocol.errors import ErrorCode, KafkaError

    given = pairs(configs, "--config")
    with target.admin() as admin:
        for name in names:
            try:
                admin.create_topic(
                    name,
                    partitions=partitions or BY_BROKER,
                    replication_factor=replication_factor or BY_BROKER,
                    configs=given,
                    validate_only=dry_run,
                )
            except KafkaError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                if not if_not_exists:
                    raise CommandError(f"topic {name} exists already") from None
                click.echo(f"topic {name} exists already")
                continue
            click.echo(f"topic {name} {'could be' if dry_run else 'was'} created")


@topic.command("describe", short_help="Describe topics: partitions, offsets, settings.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--all-configs", is_flag=True, help="Include inherited settings.")
@json_option
@cluster_options
def describe_topics(
    target: ClusterTarget, names: tuple[str, ...], all_configs: bool, as_json: bool
) -> None:
    """Describe topics: partitions with leader, replicas, ISR and offsets, and their own settings.

    With --json, one topic is an object, several are a list of objects.

    \b
    Examples:
      kafka-ds topic describe orders
      kafka-ds topic describe orders payments
      kafka-ds topic describe orders --all-configs --json
    """
    from kafka_ds.client.admin import Admin

    with target.cluster() as cluster:
        admin = Admin(cluster)
        found = [topic_of(admin, name) for name in dict.fromkeys(names)]
        described = [
            _described(cluster, each, admin.describe_topic_configs(each.name), all_configs)
            for each in found
        ]
    if as_json:
        print_json(described if len(described) > 1 else described[0])
        return
    for number, each in enumerate(described):
        if number:
            click.echo()
        print_facts({"topic": each["name"], "topic id": each["topic_id"], **each["configs"]})
        click.echo()
        print_rows(each["partitions"], tuple(each["partitions"][0]), as_json=False)


def _described(
    cluster: Cluster, topic: TopicDescription, configs: list[ConfigEntry], all_configs: bool
) -> dict[str, Any]:
    """All that is shown of a topic."""
    from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
    from kafka_ds.protocol.topic_partition import TopicPartition

    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions if not p.is_offline]
    starts = cluster.offsets(dict.fromkeys(led, EARLIEST), read_committed=False)
    ends = cluster.offsets(dict.fromkeys(led, LATEST), read_committed=False)
    rows = []
    for each in topic.partitions:
        place = TopicPartition(topic.name, each.partition)
        rows.append(
            {
                "partition": each.partition,
                "leader": None if each.is_offline else each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "start_offset": starts[place].offset if place in starts else None,
                "end_offset": ends[place].offset if place in ends else None,
            }
        )
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": _is_internal(topic),
        "replication_factor": topic.replication_factor,
        "partitions": rows,
        "configs": {e.name: e.value for e in configs if all_configs or e.source == _OWN},
    }


@topic.command("alter")
@click.argument("name")
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a setting; repeat it."
)
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Reset a setting to its default; repeat it.",
)
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="N", help="Increase to N partitions."
)
@cluster_options
def alter_topic(
    target: ClusterTarget,
    name: str,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    partitions: int | None,
) -> None:
    """Change a topic's settings, or increase its partitions.

    \b
    Examples:
      kafka-ds topic alter orders --config retention.ms=86400000
      kafka-ds topic alter orders --delete-config retention.ms --partitions 6
    """
    changes: dict[str, str | None] = {**pairs(configs, "--config"), **dict.fromkeys(deleted)}
    if not changes and partitions is None:
        raise CommandError("nothing to change: give --config, --delete-config or --partitions")
    with target.admin() as admin:
        topic_of(admin, name)
        if changes:
            admin.alter_topic_configs(name, changes)
        if partitions is not None:
            admin.create_partitions(name, partitions)
    click.echo(f"topic {name} was changed")


@topic.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also delete internal topics.")
@cluster_options
def delete_topics(target: ClusterTarget, names: tuple[str, ...], force: bool) -> None:
    """Delete topics with all their records.

    An internal topic, such as __consumer_offsets with the offsets of all groups, is deleted with --force only.

    \b
    Example:
      kafka-ds topic delete orders
    """
    with target.admin() as admin:
        if not force:
            described = admin.describe_topics()
            for name in names:
                if name not in described:
                    raise no_such_topic(name, described)
                if _is_internal(described[name]):
                    raise CommandError(
                        f"{name} is an internal topic: --force deletes it with its state"
                    )
        for name in names:
            admin.delete_topic(name)
            click.echo(f"topic {name} was deleted")
