"""Shell: the write-ahead logs of a copied lake, whose tables may have arrived later than the logs' checkpoints.

A checkpoint says up to which offset a table has had a partition's records. If the copy's table ends before, and no log
has the rest, nobody would lead there, for offsets would be used twice. `kafka-ds promote` finds that out before, and
puts a checkpoint that claims no more. Nobody writes these logs any more: they need no fence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from broker.diskless.take_over import TakenPartition, WalTakeOver, contiguous, lost_offsets
from broker.diskless.wal_object import (
    checkpoint_number,
    checkpoint_path,
    encode_checkpoint,
    place_of,
    wal_folder,
)
from broker.diskless.wal_reader import read_header
from broker.metadata.events import WalId
from broker.metadata.image import TopicImage
from kafka_ds.delta.store.store import Store
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition


class LostOffsets(NamedTuple):
    """Acknowledged records that the copy does not have."""

    key: PartitionId
    where: TopicPartition
    first: int
    last: int


class CopiedWals:
    """The logs that the registrations of these topics name, as they have arrived."""

    def __init__(
        self,
        store: Store,
        topics: Iterable[TopicImage],
        table_end: Callable[[TopicImage, int], int],
    ) -> None:
        """`table_end` gives the last offset that a table has of a partition, -1 for none.

        Raises OSError, CorruptWalObject.
        """
        self._store = store
        of_wal: defaultdict[WalId, dict[PartitionId, TakenPartition]] = defaultdict(dict)
        names: dict[PartitionId, tuple[TopicImage, int]] = {}
        for topic in topics:
            for number, state in topic.partitions.items():
                names[topic.topic_id, number] = topic, number
                taken = TakenPartition(state.leader_epoch + 1, state.wals_since)
                for wal in state.wals:
                    of_wal[wal][topic.topic_id, number] = taken
        self._logs = [self._read(WalTakeOver(*each)) for each in of_wal.items()]
        self.lost = list(self._find_lost(names, table_end))
        """What a new leader would miss."""
        self.leader_epochs: dict[PartitionId, int] = {}
        """The latest ones in these logs: changes of leader whose metadata have not arrived may be among them."""
        for log in self._logs:
            for entry in chain.from_iterable(each.entries for each in log.headers.values()):
                if entry.key in log.partitions:
                    known = self.leader_epochs.get(entry.key, -1)
                    self.leader_epochs[entry.key] = max(entry.leader_epoch, known)

    def _read(self, log: WalTakeOver) -> WalTakeOver:
        for each in self._store.list(wal_folder(log.wal)):
            place, number = place_of(each.path), checkpoint_number(each.path)
            if place is not None:
                log.read(place, read_header(self._store, each.path))
            elif number is not None and number > log.checkpoint_number:
                log.read_checkpoint(number, read_header(self._store, each.path))
        return log

    def _find_lost(
        self,
        names: dict[PartitionId, tuple[TopicImage, int]],
        table_end: Callable[[TopicImage, int], int],
    ) -> Iterator[LostOffsets]:
        found = [log.found() for log in self._logs]
        for key, (topic, number) in names.items():
            start = table_end(topic, number) + 1
            entries = chain.from_iterable(each.entries.get(key, ()) for each in found)
            claimed = max((each.table_ends.get(key, -1) for each in found), default=-1)
            lost = lost_offsets(contiguous(entries, start), start, claimed)
            if lost is not None:
                yield LostOffsets(key, TopicPartition(topic.name, number), *lost)

    def give_up(self) -> None:
        """Let no checkpoint claim what is lost. Raises OSError."""
        ends = {each.key: each.first - 1 for each in self.lost}
        for log in self._logs:
            claimed = {each.key: each.last_offset for each in log.checkpoint.entries}
            lowered = {key: min(end, ends.get(key, end)) for key, end in claimed.items()}
            if lowered != claimed:
                path = checkpoint_path(log.wal, log.checkpoint_number + 1)
                data = encode_checkpoint(new_uuid(), log.checkpoint.acked_to, lowered)
                self._store.put_durable(path, data)
