"""Shell: `kafka-ds topic`: list, create, describe, alter and delete topics."""

from __future__ import annotations

import click

from broker.cli.options import (
    ClusterTarget,
    CommandError,
    cluster_options,
    json_option,
    pairs,
    topic_of,
)
from broker.cli.output import print_facts, print_json, print_rows

_OWN = 1  # a setting's source: the topic itself


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@json_option
@cluster_options
def list_topics(target: ClusterTarget, internal: bool, as_json: bool) -> None:
    """List topics.

    \b
    Examples:
      kafka-ds topic list
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
            "internal": each.is_internal,
        }
        for each in found.values()
        if internal or not each.is_internal
    ]
    columns = ("name", "partitions", "replication_factor", "under_replicated", "offline")
    print_rows(rows, columns, as_json=as_json)


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


@topic.command("describe", short_help="Describe a topic: partitions, offsets, settings.")
@click.argument("name")
@click.option("--all-configs", is_flag=True, help="Include inherited settings.")
@json_option
@cluster_options
def describe_topic(target: ClusterTarget, name: str, all_configs: bool, as_json: bool) -> None:
    """Describe a topic: partitions with leader, replicas, ISR and offsets, and its own settings.

    \b
    Examples:
      kafka-ds topic describe orders
      kafka-ds topic describe orders --all-configs --json
    """
    from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
    from kafka_ds.protocol.topic_partition import TopicPartition

    with target.cluster() as cluster:
        from kafka_ds.client.admin import Admin

        admin = Admin(cluster)
        found = topic_of(admin, name)
        configs = admin.describe_topic_configs(name)
        led = [TopicPartition(name, p.partition) for p in found.partitions if not p.is_offline]
        starts = cluster.offsets(dict.fromkeys(led, EARLIEST), read_committed=False)
        ends = cluster.offsets(dict.fromkeys(led, LATEST), read_committed=False)
    rows = []
    for each in found.partitions:
        place = TopicPartition(name, each.partition)
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
    shown = {e.name: e.value for e in configs if all_configs or e.source == _OWN}
    if as_json:
        facts = {"name": name, "topic_id": found.topic_id, "internal": found.is_internal}
        factor = {"replication_factor": found.replication_factor}
        print_json({**facts, **factor, "partitions": rows, "configs": shown})
        return
    print_facts({"topic": name, "topic id": found.topic_id, **shown})
    click.echo()
    print_rows(rows, tuple(rows[0]), as_json=False)


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
            internal = {each.name for each in admin.describe_topics().values() if each.is_internal}
            for name in names:
                if name in internal:
                    raise CommandError(
                        f"{name} is an internal topic: --force deletes it with its state"
                    )
        for name in names:
            admin.delete_topic(name)
            click.echo(f"topic {name} was deleted")
