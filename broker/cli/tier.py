"""Shell: `kafka-ds tier`: shows the local and tiered parts of topics, and runs table maintenance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from broker.cli.lake import Lake, LakeQueries
from broker.cli.options import (
    ClusterTarget,
    CommandError,
    cluster_options,
    json_option,
    plain,
    topic_of,
)
from broker.cli.output import OutputRow, bytes_text, note, print_json, print_rows, progress
from broker.cli.tail import TailPosition, offsets_at

if TYPE_CHECKING:
    from kafka_ds.client.admin import Admin, TopicDescription
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.protocol.messages import MaintainTableResponse
    from kafka_ds.protocol.topic_partition import TopicPartition

_RANGES = """
SELECT topic_id, partition, count(*) AS ranges, CAST(sum(lake_bytes) AS BIGINT) AS lake_bytes,
       CAST(sum(row_count) AS BIGINT) AS lake_rows, max(end_offset) AS highest_offset_in_remote_storage
FROM remote_segments WHERE state = 'COPY_SEGMENT_FINISHED' GROUP BY topic_id, partition
"""
_DUE = "SELECT topic_id, count(*) AS ranges FROM retention_debt GROUP BY topic_id"

# The timeout of one partition's maintenance, including a change of its leader.
MAINTENANCE_MS = 600_000


@click.group()
def tier() -> None:
    """Show what is tiered, and run table maintenance."""


@tier.command("status", short_help="Show local and tiered sizes of each topic.")
@click.option(
    "--lake",
    metavar="DIR",
    help="lake.uri, if this machine addresses it differently than the brokers.",
)
@json_option
@cluster_options
def status(target: ClusterTarget, lake: str | None, as_json: bool) -> None:
    """Show local and lake bytes, tiered ranges, lag and expired ranges of each topic.

    The lag is the number of committed offsets that are not tiered yet; a segment is copied after it is rolled.

    \b
    Examples:
      kafka-ds tier status
      kafka-ds tier status --json --lake /mnt/lake
    """
    from kafka_ds.client.admin import Admin

    with target.cluster() as cluster:
        admin = Admin(cluster)
        topics = admin.describe_topics()
        ranges, due = _lake_rows(ClusterTarget(lake=lake).over(target), admin)
        sizes = _local_bytes(admin)
        rows = [
            _row(cluster, each, ranges, due, sizes)
            for each in topics.values()
            if not each.is_internal
        ]
    if as_json:
        print_json(rows)
        return
    shown = [
        {**row, "local": bytes_text(row["local_bytes"]), "lake": bytes_text(row["lake_bytes"])}
        for row in rows
    ]
    columns = ("topic", "tiered", "local", "lake", "ranges", "lake_rows", "lag", "due")
    print_rows(shown, columns, as_json=False)


def _lake_rows(
    target: ClusterTarget, admin: Admin
) -> tuple[dict[tuple[str, int], OutputRow], dict[str, int]] | tuple[None, None]:
    """Ranges by topic id and partition, and expired ranges by topic id; None if the lake cannot be read."""
    where = target.lake_of(admin)
    try:
        with closing(LakeQueries(Lake(where))) as queries:
            if not queries.has_view("remote_segments"):
                return {}, {}
            ranges = {(row["topic_id"], row["partition"]): row for row in queries.rows(_RANGES)}
            # Its tables exist after about a minute.
            has_debt = queries.has_view("retention_debt")
            debt = queries.rows(_DUE) if has_debt else []
            return ranges, {row["topic_id"]: row["ranges"] for row in debt}
    except CommandError as problem:
        note(f"kafka-ds: cannot read the lake from this machine: {problem.format_message()}")
        return None, None


def _local_bytes(admin: Admin) -> dict[str, int]:
    """The size of all replicas of each topic."""
    found: dict[str, int] = {}
    for each in admin.describe_log_dirs():
        found[each.topic] = found.get(each.topic, 0) + each.size_bytes
    return found


def _row(
    cluster: Cluster,
    topic: TopicDescription,
    ranges: dict[tuple[str, int], OutputRow] | None,
    due: dict[str, int] | None,
    sizes: dict[str, int],
) -> OutputRow:
    is_tiered = cluster.topic_setting(topic.name, "remote.storage.enable") == "true"
    row: OutputRow = {
        "topic": topic.name,
        "tiered": is_tiered,
        "partitions": len(topic.partitions),
        "local_bytes": sizes.get(topic.name, 0),
        "lake_bytes": None,
        "lake_rows": None,
        "ranges": None,
        "lag": None,
        "due": None,
    }
    if ranges is None or due is None:
        return row
    mine = {p: row for (topic_id, p), row in ranges.items() if topic_id == topic.topic_id}
    for name in ("ranges", "lake_bytes", "lake_rows"):
        row[name] = sum(each[name] or 0 for each in mine.values())
    row["due"] = due.get(topic.topic_id, 0)
    if is_tiered:
        row["lag"] = _lag(
            cluster,
            topic,
            {p: each["highest_offset_in_remote_storage"] for p, each in mine.items()},
        )
    return row


def _lag(
    cluster: Cluster, topic: TopicDescription, highest_offsets_in_remote_storage: dict[int, int]
) -> int | None:
    """The number of committed offsets that are not tiered; None while a partition has no leader."""
    from kafka_ds.protocol.topic_partition import TopicPartition

    if any(each.is_offline for each in topic.partitions):
        return None
    places = [TopicPartition(topic.name, each.partition) for each in topic.partitions]

    def at(kind: Any) -> dict[TopicPartition, int]:
        return offsets_at(cluster, places, TailPosition(kind=kind), read_committed=True)

    starts, ends = at("beginning"), at("end")
    return sum(
        max(0, ends[p] - max(starts[p], highest_offsets_in_remote_storage.get(p.partition, -1) + 1))
        for p in places
    )


# -- maintenance --------------------------------------------------------------------------------

_topics = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="A topic; repeat it. Default: all tiered topics.",
)


@tier.command("optimize", short_help="Merge small files of tables now.")
@_topics
@json_option
@cluster_options
def optimize(target: ClusterTarget, topics: tuple[str, ...], as_json: bool) -> None:
    """Merge small files of tables now, and delete rows below the log start offset.

    Brokers do the same by themselves (lake.maintenance.interval.ms). Each row of the result is a partition.
    If a partition fails, its row has the error, the others are processed, and the exit status is 1.

    \b
    Examples:
      kafka-ds tier optimize
      kafka-ds tier optimize --topic orders --json
    """
    from kafka_ds.protocol.messages.brokers import OPTIMIZE

    def figures(done: MaintainTableResponse) -> OutputRow:
        return {
            "files_before": done.files_before,
            "files_after": done.files_after,
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
            "rows": done.rows,
            "expired_rows": done.expired_rows,
        }

    _maintain(target, topics, OPTIMIZE, "optimizing", figures, as_json=as_json)


@tier.command("expire", short_help="Apply retention to tables now.")
@_topics
@json_option
@cluster_options
def expire(target: ClusterTarget, topics: tuple[str, ...], as_json: bool) -> None:
    """Apply topics' retention to their tables now.

    Brokers do the same by themselves (remote.log.manager.task.interval.ms). Each row of the result is a partition.
    If a partition fails, its row has the error, the others are processed, and the exit status is 1.

    \b
    Examples:
      kafka-ds tier expire
      kafka-ds tier expire --topic orders --json
    """
    from kafka_ds.protocol.messages.brokers import EXPIRE

    def figures(done: MaintainTableResponse) -> OutputRow:
        return {
            "log_start_offset": done.log_start_offset,
            "segments": done.expired_segments,
            "files": done.files_before,
            "bytes": done.bytes_before,
        }

    _maintain(target, topics, EXPIRE, "expiring", figures, as_json=as_json)


def _maintain(
    target: ClusterTarget,
    names: tuple[str, ...],
    operation: int,
    what: str,
    figures: Callable[[MaintainTableResponse], OutputRow],
    *,
    as_json: bool,
) -> None:
    """Have the leaders run an operation on each partition, one after the other, and print the results."""
    from kafka_ds.client.admin import Admin
    from kafka_ds.errors import ClientError
    from kafka_ds.protocol.errors import KafkaError
    from kafka_ds.protocol.messages import MaintainTableResponse

    nothing = dict.fromkeys(figures(MaintainTableResponse()))
    rows: list[OutputRow] = []
    with target.cluster(request_timeout_ms=MAINTENANCE_MS) as cluster:
        admin = Admin(cluster)
        target.lake_of(admin)  # Fails for Apache Kafka, which would close the connection.
        places = _tiered(cluster, admin, names)
        with progress(what, len(places), unit="partitions") as advance:
            for place, is_offline in places:
                error = "no leader" if is_offline else None
                done = nothing
                try:
                    if not is_offline:
                        done = figures(admin.maintain_table(place, operation))
                except (ClientError, KafkaError) as problem:
                    error = plain(problem)
                rows.append(
                    {"topic": place.topic, "partition": place.partition, **done, "error": error}
                )
                advance(1)
    failed = [row for row in rows if row["error"]]
    columns = ("topic", "partition", *nothing, *(("error",) if failed else ()))
    print_rows(rows, columns, as_json=as_json)
    if failed:
        raise CommandError(f"{len(failed)} of {len(rows)} partitions failed")


def _tiered(
    cluster: Cluster, admin: Admin, names: tuple[str, ...]
) -> list[tuple[TopicPartition, bool]]:
    """The partitions of tiered topics, and whether each is offline. Raises CommandError."""
    from kafka_ds.protocol.topic_partition import TopicPartition

    chosen = [topic_of(admin, name) for name in dict.fromkeys(names)]
    topics = chosen or admin.describe_topics().values()
    tiered = [
        each
        for each in topics
        if cluster.topic_setting(each.name, "remote.storage.enable") == "true"
    ]
    for name in names:
        if name not in {each.name for each in tiered}:
            raise CommandError(f"topic {name} is not tiered (remote.storage.enable)")
    return [
        (TopicPartition(each.name, p.partition), p.is_offline)
        for each in tiered
        for p in each.partitions
    ]
