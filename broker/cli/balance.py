"""Shell: `kafka-ds cluster balance`: spread replicas by bytes and leaders by the bytes produced to them.

The cluster keeps what was begun: a run that is killed leaves reassignments under way, and the next one waits for them
before it plans. Throttles are Kafka's settings (KIP-73), removed when the moves have ended.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from broker.cli.balance_plan import PartitionLoad, PlannedReassignment, loads, reassignments
from broker.cli.options import ClusterTarget, CommandError, cluster_options, json_option
from broker.cli.output import bytes_text, note, print_json, print_rows, progress
from kafka_ds.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kafka_ds.client.admin import Admin, BrokerDescription

SHOWN_MAX = 50
POLL_SECONDS = 0.5
# Partitions that are reassigned at a time: what an interrupted run leaves under way.
AT_ONCE = 20
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@click.command("balance", short_help="Spread replicas and leaders over the brokers.")
@click.option("--execute", is_flag=True, help="Carry the plan out. Without it, it is only shown.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0.0, 10.0),
    metavar="FRACTION",
    default=0.1,
    show_default=True,
    help="The fraction of the mean by which a broker may exceed it.",
)
@click.option(
    "--max-moves",
    type=click.IntRange(min=0),
    metavar="N",
    help="Move at most so many replicas. Default: all.",
)
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Bytes a second that each broker may send and take for these moves. Default: no limit.",
)
@click.option(
    "--sample-seconds",
    type=click.FloatRange(0.0, 3600.0),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="How long to watch logs grow, to know what is produced to each leader.",
)
@json_option
@cluster_options
def balance(
    target: ClusterTarget,
    execute: bool,
    tolerance: float,
    max_moves: int | None,
    throttle: int | None,
    sample_seconds: float,
    as_json: bool,
) -> None:
    """Spread replicas by their bytes, and leaders by the bytes produced to them.

    Shows the plan; `--execute` carries it out, internal topics included. Replicas stay on as many racks as they are.
    If a run is interrupted, run it again: it waits for the moves that are under way, and plans from there. In the end
    all replication throttles are removed, as by Kafka's tool: do not run both at a time.

    \b
    Examples:
      kafka-ds cluster balance
      kafka-ds cluster balance --execute --throttle 50000000
    """
    with target.admin() as admin:
        under_way = admin.list_partition_reassignments()
        if under_way:
            note(f"{len(under_way)} partitions are being reassigned already")
            if execute:
                _limit(admin, throttle)  # Not what the interrupted run was given.
                _await(admin, under_way)
        all_brokers = admin.describe_cluster().brokers
        brokers = [each for each in all_brokers if not each.is_fenced]
        for each in all_brokers:
            if each.is_fenced:
                note(f"broker {each.node_id} is fenced: its replicas stay, and none is moved to it")
        partitions = _measured(admin, sample_seconds)
        racks = {each.node_id: each.rack for each in brokers}
        plan = reassignments(partitions, racks, tolerance=tolerance, moves_max=max_moves)
        _show(brokers, partitions, plan, as_json=as_json)
        if execute:
            _carry_out(admin, plan, throttle)


def _measured(admin: Admin, seconds: float) -> list[PartitionLoad]:
    """All partitions with the size of the leader's replica, and how fast it grew."""
    before = _sizes(admin)
    began = time.monotonic()
    if seconds:
        note(f"watching logs for {seconds:g} s")
        time.sleep(seconds)
    after = _sizes(admin)
    passed = time.monotonic() - began
    found = []
    topics = admin.describe_topics().values()
    offline = [(each.name, p.partition) for each in topics for p in each.partitions if p.is_offline]
    if offline:
        first = TopicPartition(*offline[0])
        note(f"{len(offline)} partitions are offline and stay where they are, the first is {first}")
    for topic in topics:
        for each in topic.partitions:
            if each.is_offline:
                continue
            at = (topic.name, each.partition, each.leader)
            # Retention and copies to the lake make a log smaller.
            growth = max(0, after.get(at, 0) - before.get(at, after.get(at, 0)))
            found.append(
                PartitionLoad(
                    place=TopicPartition(topic.name, each.partition),
                    replicas=tuple(each.replicas),
                    size_bytes=after.get(at, 0),
                    rate=growth / passed if seconds else 0.0,
                )
            )
    return found


def _sizes(admin: Admin) -> dict[tuple[str, int, int], int]:
    sizes = admin.describe_log_dirs()
    return {(each.topic, each.partition, each.broker): each.size_bytes for each in sizes}


def _show(
    brokers: Sequence[BrokerDescription],
    partitions: Sequence[PartitionLoad],
    plan: Sequence[PlannedReassignment],
    *,
    as_json: bool,
) -> None:
    planned = {each.place: each.after for each in plan}
    moved = [replace(each, replicas=planned.get(each.place, each.replicas)) for each in partitions]
    ids = [each.node_id for each in brokers]
    before, after = loads(partitions, ids), loads(moved, ids)
    rows: list[dict[str, Any]] = []
    for each in ids:
        row: dict[str, Any] = {"broker": each}
        for name, (replicas, size, leads, rate) in (("", before[each]), ("_planned", after[each])):
            row |= {
                f"replicas{name}": replicas, f"bytes{name}": size,
                f"leaders{name}": leads, f"bytes_per_second{name}": round(rate),
            }  # fmt: skip
        rows.append(row)
    moves: list[dict[str, Any]] = [
        {
            "topic": each.place.topic,
            "partition": each.place.partition,
            "replicas": list(each.before),
            "replicas_planned": list(each.after),
            "bytes": each.bytes_moved,
        }
        for each in plan
    ]
    if as_json:
        print_json({"brokers": rows, "moves": moves})
        return
    for row in rows:
        row |= {name: bytes_text(row[name]) for name in row if name.startswith("bytes")}
    print_rows(rows, tuple(rows[0]) if rows else ("broker",), as_json=False)
    if not plan:
        click.echo("\nnothing to move")
        return
    size = sum(each.bytes_moved for each in plan)
    click.echo(f"\n{len(plan)} partitions to reassign, {bytes_text(size)} to copy:")
    for move in moves[:SHOWN_MAX]:
        move["bytes"] = bytes_text(move["bytes"])
    print_rows(moves[:SHOWN_MAX], tuple(moves[0]), as_json=False)
    if len(moves) > SHOWN_MAX:
        click.echo(f"and {len(moves) - SHOWN_MAX} more (--json has all)")


# -- carrying it out ----------------------------------------------------------------------------


def _carry_out(admin: Admin, plan: Sequence[PlannedReassignment], throttle: int | None) -> None:
    skipped = 0
    with _throttled(admin, plan, throttle), progress("moved", len(plan), unit="partitions") as done:
        for first in range(0, len(plan), AT_ONCE):
            part = plan[first : first + AT_ONCE]
            wanted = _still_as_planned(admin, part)
            skipped += len(part) - len(wanted)
            if wanted:
                admin.alter_partition_reassignments(wanted)
                _await(admin, wanted)
            done(len(part))
    if plan:
        note(f"{len(plan) - skipped} partitions were reassigned")
    if skipped:
        note(f"{skipped} partitions changed since they were planned, and were left as they are")
    _elect(admin)


def _still_as_planned(
    admin: Admin, part: Sequence[PlannedReassignment]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The new replicas of partitions whose replicas are still those of the plan."""
    topics = admin.describe_topics({each.place.topic for each in part})
    now = {
        TopicPartition(topic.name, each.partition): tuple(each.replicas)
        for topic in topics.values()
        for each in topic.partitions
    }
    return {each.place: each.after for each in part if now.get(each.place) == each.before}


def _elect(admin: Admin) -> None:
    """Have preferred leaders lead, also those that an interrupted run has moved to their place. Raises CommandError."""
    wanted = [
        TopicPartition(topic.name, each.partition)
        for topic in admin.describe_topics().values()
        for each in topic.partitions
        if each.leader != each.replicas[0] and each.replicas[0] in each.isr
    ]
    refused = admin.elect_preferred_leaders(wanted) if wanted else {}
    if refused:
        place, problem = min(refused.items())
        raise CommandError(
            f"{len(refused)} preferred leaders were not elected, the first of {place}: {problem}"
        )


def _await(admin: Admin, places: Collection[TopicPartition]) -> None:
    """Wait until none of these is being reassigned. The cluster goes on if this is interrupted."""
    left = {*places}
    with progress("waiting for", len(left), unit="reassignments") as advance:
        while left:
            now = left.intersection(admin.list_partition_reassignments())
            advance(len(left) - len(now))
            left = now
            if left:
                time.sleep(POLL_SECONDS)


@contextmanager
def _throttled(
    admin: Admin, plan: Sequence[PlannedReassignment], throttle: int | None
) -> Iterator[None]:
    """Limit the replication of these partitions on every broker, and end that when none is moved any more."""
    try:
        if throttle is not None and plan:
            _throttle(admin, plan, throttle)
        yield
    finally:
        if admin.list_partition_reassignments():
            note("moves are under way: run this again to wait for them and to end their throttle")
        else:
            _unthrottle(admin)


def _throttle(admin: Admin, plan: Sequence[PlannedReassignment], throttle: int) -> None:
    replicas: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for each in plan:
        leaders, followers = replicas[each.place.topic]
        partition = each.place.partition
        leaders += [f"{partition}:{broker}" for broker in each.before]
        followers += [f"{partition}:{b}" for b in each.after if b not in each.before]
    for topic, of_topic in replicas.items():
        texts = {name: ",".join(each) for name, each in zip(_REPLICAS, of_topic, strict=True)}
        admin.alter_topic_configs(topic, {name: text for name, text in texts.items() if text})
    _limit(admin, throttle)


def _unthrottle(admin: Admin) -> None:
    """Remove the throttles of all topics and brokers, those of an interrupted run included."""
    set_on = admin.topic_settings(list(admin.describe_topics()), _REPLICAS)
    for topic, settings in set_on.items():
        if any(settings.get(name) for name in _REPLICAS):
            admin.alter_topic_configs(topic, dict.fromkeys(_REPLICAS))
    _limit(admin, None)


def _limit(admin: Admin, throttle: int | None) -> None:
    """Set the rate of throttled replicas on every broker, or remove it."""
    rate = None if throttle is None else str(throttle)
    for broker in admin.describe_cluster().brokers:
        admin.alter_broker_configs(broker.node_id, dict.fromkeys(_RATES, rate))
