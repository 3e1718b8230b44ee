"""What a read replica may show: a version that has wholly arrived in its copy, and never less than it has shown.

As `checkers`, this asks nothing of the product's rules: it knows each version of a table from the commit that made it,
and each object that the copy has ever had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.worker.rpc import PublishOffsets
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import BatchHeader, Record
from tests.sim.keeping import TierConsumer
from tests.sim.replica_host import ReplicaHost
from tests.sim.replicator import Replicator
from tests.sim.tier_lake import LOG, TOPICS, TableWatch
from tests.sim.world import Truth

Place = tuple[str, int]
"""Topic id and partition."""


class Version(NamedTuple):
    """A version of a table as its commit made it."""

    number: int
    ends: dict[Place, int]
    starts: dict[Place, int]
    files: frozenset[str]


class ArrivalModel:
    """Which versions of topics' tables may be shown."""

    def __init__(self, tables: TableWatch, replicator: Replicator) -> None:
        self._tables = tables
        self._replicator = replicator
        self._versions: dict[str, list[Version]] = {}
        tables.on_version = self._made

    def _made(self, topic: str, table: Any) -> None:
        version = Version(
            table.version,
            dict(table.ends),
            dict(table.starts),
            frozenset((*table.files, *table.absent)),
        )
        self._versions.setdefault(topic, []).append(version)

    def check(self, topic: str, place: Place, start: int, end: int) -> None:
        """A version that has arrived ends there, and has told that log start."""
        told = [f"{topic} {place}: {start} to {end}"]
        for version in reversed(self._versions.get(topic, [])):
            its_start = version.starts.get(place, 0)
            if max(version.ends.get(place, -1) + 1, its_start) == end and start <= its_start:
                missing = next(self._missing(topic, version), None)
                if missing is None:
                    return
                told.append(f"version {version.number} lacks {missing}")
        raise AssertionError("; ".join([*told, "no version that has arrived shows that"]))

    def _missing(self, topic: str, version: Version) -> Iterator[str]:
        """The objects of a version that have never come."""
        ever, folder = self._replicator.ever, f"{TOPICS}{topic}"
        for name in version.files:
            if f"{folder}/{name}" not in ever:
                yield f"{folder}/{name}"
        for number in range(version.number, -1, -1):
            if f"{folder}{LOG}{number:020d}.checkpoint.parquet" in ever:
                return
            commit = f"{folder}{LOG}{number:020d}.json"
            if commit not in ever:
                yield commit


@dataclass(slots=True)
class _Shown:
    """What one life of a replica has shown."""

    life: object
    version: int = -1
    partitions: dict[Place, tuple[int, int, int]] = field(default_factory=dict)
    """Leader epoch, log start and high watermark."""
    published: object = None


class ReplicaWatch:
    """Looks at replicas all along."""

    def __init__(self, truth: Truth, arrivals: ArrivalModel) -> None:
        self._truth = truth
        self._arrivals = arrivals
        self._shown: dict[int, _Shown] = {}
        self._offsets: set[tuple[Any, ...]] = set()
        self.moves = 0
        """How often a replica was seen to have moved on."""

    def asked(self, request: object) -> None:
        """A broker asks its worker: what it publishes is what replicas may show of groups."""
        if isinstance(request, PublishOffsets):
            for text in request.shards:
                shard, _, _, offsets, _ = json.loads(text)
                self._offsets |= {(shard, *_key(*each)) for each in offsets}

    def look(self, host: ReplicaHost) -> None:
        """What it shows now has arrived, and is no less than what it has shown."""
        assert not host.trouble, f"{host.name} ended by itself: {host.trouble}"
        replica = host.replica
        if replica is None:
            return
        shown = self._shown.get(host.node_id)
        if shown is None or shown.life is not replica:
            shown = self._shown[host.node_id] = _Shown(replica)
        version = replica.metadata.version
        if version != shown.version:
            newest = self._truth.image().version
            assert shown.version < version <= newest, (
                f"{host.name}: metadata of version {version} after {shown.version}, newest {newest}"
            )
            shown.version = version
        for each in replica.replica_manager:
            place = (uuid_text(each.topic_id), each.partition)
            now = (each.leader_epoch, each.log.log_start_offset, each.high_watermark)
            before = shown.partitions.get(place, (0, 0, 0))
            if now == before:
                continue
            where = f"{host.name}: {each.topic} {place}"
            assert all(a <= b for a, b in zip(before, now, strict=True)), (
                f"{where}: {before}, {now}"
            )
            if now[1:] != before[1:]:
                self._arrivals.check(each.topic, place, *now[1:])
                self.moves += 1
            shown.partitions[place] = now
        published = replica.groups.published
        if published is not shown.published:
            shown.published = published
            for one in published.offsets:
                key = (one.coordinator_partition, *_key(
                    one.group_id, one.topic, one.topic_id or None, one.partition,
                    one.committed_offset, one.committed_leader_epoch,
                ))  # fmt: skip
                assert key in self._offsets, f"{host.name}: nobody has published {key}"


def _key(
    group: str, topic: str, topic_id: str | None, partition: int, offset: int, epoch: int, *_: Any
) -> tuple[Any, ...]:
    return group, topic, topic_id, partition, offset, epoch


class ReplicaConsumer(TierConsumer):
    """A reader of a replica: what it gets has no gap where the table has rows."""

    def __init__(self, *client: Any, tables: TableWatch, **named: Any) -> None:
        super().__init__(*client, **named)
        self._tables = tables
        self.epochs: dict[int, int] = {}

    def seen(self, record: Record, header: BatchHeader) -> None:
        super().seen(record, header)
        self.epochs[record.offset] = header.leader_epoch

    def _take(self, data: Any) -> None:
        begin, since = self.position, len(self.read)
        super()._take(data)
        if self.position == begin:
            return
        got = {offset for offset, _ in self.read[since:]}
        topic, index = self.partition
        ever, start = self._tables.tables[topic].ever, self._tables.start(topic, index)
        skipped = [
            offset
            for offset in range(max(begin, start), self.position)
            if (self._topic_id, index, offset) in ever and offset not in got
        ]
        assert not skipped, f"{self.partition}: {skipped[:5]} were passed over"
