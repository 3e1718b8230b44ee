"""Shell: `kafka-ds group`: list, describe with lag, reset and delete groups of any kind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from broker.cli.options import (
    ClusterTarget,
    CommandError,
    cluster_options,
    json_option,
    no_such_topic,
)
from broker.cli.output import note, print_facts, print_json, print_rows, progress
from broker.cli.tail import TailPosition, offsets_at, parse_position
from kafka_ds.process.amounts import counted
from kafka_ds.process.settings import suggestion

if TYPE_CHECKING:
    from kafka_ds.client.admin import Admin, GroupDescription, ShareOffset
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.protocol.topic_partition import TopicPartition

GONE = "Dead"
SHARE = "share"
# Whose offsets are looked up in one request.
PARTITIONS_AT_ONCE = 100
COLUMNS = ("topic", "partition", "committed", "end", "lag", "client_id", "host")
SHARE_COLUMNS = ("topic", "partition", "start_offset", "lag", "members")


@click.group()
def group() -> None:
    """List, describe, reset and delete groups."""


@group.command("list")
@json_option
@cluster_options
def list_groups(target: ClusterTarget, as_json: bool) -> None:
    """List groups with their states.

    \b
    Example:
      kafka-ds group list
    """
    with target.admin() as admin:
        found = admin.list_groups()
    rows = [
        {
            "group": each.group_id,
            "state": each.state,
            "type": each.kind.lower(),
            "protocol": each.protocol_type,
            "coordinator": each.coordinator,
        }
        for each in found
    ]
    print_rows(rows, ("group", "state", "type", "protocol", "coordinator"), as_json=as_json)


@group.command("describe")
@click.argument("name", metavar="GROUP")
@json_option
@cluster_options
def describe_group(target: ClusterTarget, name: str, as_json: bool) -> None:
    """Describe a group: state, members, committed offsets and lag.

    Of a share group it shows start offsets and its own lag.

    \b
    Examples:
      kafka-ds group describe billing
      kafka-ds group describe billing --json
    """
    from kafka_ds.client.admin import Admin

    with target.cluster() as cluster:
        admin = Admin(cluster)
        found = _group_of(admin, name)
        if found.kind == SHARE:
            rows = _share_rows(found, admin.share_offsets(name))
        else:
            rows = _lag_rows(cluster, found, admin.committed_offsets(name))
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    facts = {
        "group": name,
        "state": found.state,
        "type": found.kind,
        "members": len(found.members),
        "lag": sum(lags) if lags else None,
    }
    if as_json:
        members = [
            {"member_id": m.member_id, "client_id": m.client_id, "host": m.host}
            for m in found.members
        ]
        print_json({**facts, "members": members, "partitions": rows})
        return
    print_facts(facts)
    if rows:
        click.echo()
        columns = SHARE_COLUMNS if found.kind == SHARE else COLUMNS
        print_rows(rows, columns, as_json=False)


def _group_of(admin: Admin, name: str) -> GroupDescription:
    found = admin.describe_group(name)
    if found.state == GONE:
        raise _no_such_group(admin, name)
    return found


def _no_such_group(admin: Admin, name: str) -> CommandError:
    """The error for a group that does not exist, with those of similar names."""
    near = suggestion(name, (each.group_id for each in admin.list_groups()))
    return CommandError(f"there is no group {name}{near}")


def _lag_rows(
    cluster: Cluster, found: GroupDescription, committed: dict[TopicPartition, int]
) -> list[dict[str, Any]]:
    """One row for each partition with a committed offset or a member."""
    readers = {place: member for member in found.members for place in member.partitions}
    places = sorted({*committed, *readers})
    topics = cluster.topics({place.topic for place in places}) if places else {}
    # A task of a streams group names partitions of its largest topic.
    places = [
        p
        for p in places
        if p in committed or p.topic not in topics or p.partition in topics[p.topic].partitions
    ]
    there = [p for p in places if p.topic in topics and p.partition in topics[p.topic].partitions]
    ends = offsets_at(cluster, there, parse_position("end")) if there else {}
    rows = []
    for place in places:
        end, offset, member = ends.get(place), committed.get(place), readers.get(place)
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": end,
                "lag": None if end is None or offset is None else max(0, end - offset),
                "member_id": member.member_id if member else None,
                "client_id": member.client_id if member else None,
                "host": member.host if member else None,
            }
        )
    return rows


def _share_rows(
    found: GroupDescription, offsets: dict[TopicPartition, ShareOffset]
) -> list[dict[str, Any]]:
    """One row for each partition of which a share group has a state."""
    readers = Counter(place for member in found.members for place in member.partitions)
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "start_offset": offset.start_offset,
            "lag": offset.lag,
            "members": readers[place],
        }
        for place, offset in sorted(offsets.items())
    ]


@group.command("reset", short_help="Set the committed offsets of a group.")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="A topic; repeat it. Default: all with committed offsets.",
)
@click.option(
    "--partition", "only", type=click.IntRange(min=0), metavar="P", help="Only this partition."
)
@click.option(
    "--to",
    "goal",
    required=True,
    metavar="POSITION",
    help="beginning, end, an offset, -N (the last N), a time (2026-11-20T12:00) or an age (-15m).",
)
@click.option("--execute", is_flag=True, help="Set the offsets; without it they are only shown.")
@json_option
@cluster_options
def reset_group(
    target: ClusterTarget,
    name: str,
    topics: tuple[str, ...],
    only: int | None,
    goal: str,
    execute: bool,
    as_json: bool,
) -> None:
    """Set a group's committed offsets; without --execute it only shows what it would do.

    Of a share group its start offsets are set. The group must have no members. A group that does not exist is created,
    as a consumer group.

    \b
    Examples:
      kafka-ds group reset billing --topic orders --to beginning
      kafka-ds group reset billing --topic orders --to 2026-11-20T12:00 --execute
    """
    from kafka_ds.client.admin import Admin

    position = parse_position(goal)
    with target.cluster() as cluster:
        admin = Admin(cluster)
        found = admin.describe_group(name)
        if not found.is_empty:
            raise CommandError(
                f"group {name} is {found.state} with {counted(len(found.members), 'member')}: stop them first"
            )
        committed = _offsets(admin, found)
        places = _places(cluster, topics, only, committed)
        goals = _goals(cluster, places, position)
        rows = [
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": committed.get(place),
                "new_offset": goals[place],
            }
            for place in places
        ]
        if execute:
            (admin.alter_share_offsets if found.kind == SHARE else admin.commit_offsets)(
                name, goals
            )
    print_rows(rows, ("topic", "partition", "committed", "new_offset"), as_json=as_json)
    if not execute:
        note("nothing was changed: run it again with --execute")


def _goals(
    cluster: Cluster, places: list[TopicPartition], position: TailPosition
) -> dict[TopicPartition, int]:
    """Where each partition is set to. A time is looked up in the lake, too."""
    goals: dict[TopicPartition, int] = {}
    with progress("looking up offsets", len(places), unit="partitions") as advance:
        for first in range(0, len(places), PARTITIONS_AT_ONCE):
            some = places[first : first + PARTITIONS_AT_ONCE]
            goals |= offsets_at(cluster, some, position)
            advance(len(some))
    return goals


def _offsets(admin: Admin, found: GroupDescription) -> dict[TopicPartition, int]:
    """The committed offsets of a group, or the start offsets of a share group."""
    if found.kind != SHARE:
        return admin.committed_offsets(found.group_id) if found.state != GONE else {}
    offsets = admin.share_offsets(found.group_id)
    # One that nobody knows yet has no number; it can be set all the same.
    return {
        place: -1 if each.start_offset is None else each.start_offset
        for place, each in offsets.items()
    }


def _places(
    cluster: Cluster,
    topics: tuple[str, ...],
    only: int | None,
    committed: dict[TopicPartition, int],
) -> list[TopicPartition]:
    """The selected partitions. Raises CommandError if there are none."""
    from kafka_ds.protocol.topic_partition import TopicPartition

    wanted = set(topics) or {place.topic for place in committed}
    if not wanted:
        raise CommandError("this group has no offsets: give --topic")
    known = cluster.topics(wanted)
    for name in sorted(wanted - known.keys()):
        if topics:
            raise no_such_topic(name, cluster.topics(None))
    places = [
        TopicPartition(name, partition)
        for name, topic in sorted(known.items())
        for partition in sorted(topic.partitions)
        if only in (None, partition)
    ]
    if not places:
        raise CommandError(f"there is no partition {only}" if known else "its topics were deleted")
    return places


@group.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@cluster_options
def delete_groups(target: ClusterTarget, names: tuple[str, ...]) -> None:
    """Delete groups without members, with their committed offsets.

    \b
    Example:
      kafka-ds group delete billing
    """
    from kafka_ds.protocol.errors import ErrorCode, KafkaError

    with target.admin() as admin:
        for name in names:
            try:
                admin.delete_group(name)
            except KafkaError as error:
                if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
                    raise _no_such_group(admin, name) from None
                if error.code == ErrorCode.NON_EMPTY_GROUP:
                    raise CommandError(f"group {name} has members: stop them first") from None
                raise
            click.echo(f"group {name} was deleted")
