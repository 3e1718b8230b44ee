"""Shell: the bulk load that a topic begins with: its files are there, and become the topic's by one commit.

What the tasks of Spark wrote is listed in one object of the lake. Each leader has those of its partitions committed
before it leads, by the steps of a copy: so a crash between any two of them, another leader and a repeated request
change nothing. A partition's mark in the table tells, once the list is gone, that it lacks nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import StorageError
from broker.worker.rpc import LogSegmentData
from kafka_ds.delta.store.store import Store
from kafka_ds.protocol.types import uuid_text
from kafka_ds.segments.producers import Producers
from kafka_ds.topic.files.parquet import WrittenFile
from kafka_ds.topic.load import (
    LEADER_EPOCH,
    BadLoad,
    LoadedFile,
    decode_load,
    load_file,
    owner_file,
)
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

PAUSE_S_MAX = 32.0
_Ranges = tuple[list[LogSegmentData], list[WrittenFile]]


class _WaitingLoad(NamedTuple):
    """A topic whose load lacks something: what, when it is looked for again, and how long that was put off."""

    problem: str
    until: float
    pause_s: float


_NOT_WAITING = _WaitingLoad("", 0, 0.5)


class Loader:
    """Commits bulk loads. One thread."""

    def __init__(
        self,
        store: Store,
        storage: RemoteStorageManager,
        copier: Copier,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._storage = storage
        self._copier = copier
        self._monotonic = monotonic
        self._waiting: dict[bytes, _WaitingLoad] = {}

    def load(self, topic: str, topic_id: bytes, leader_epochs: Mapping[int, int], load: str) -> int:
        """Have the table hold what was loaded of these partitions (number → epoch), as far as there are files.

        Returns how many partitions the load knew, for their marks; 0 if all have theirs. Raises StorageError, OSError.
        """
        waiting = self._waiting.get(topic_id, _NOT_WAITING)
        if self._monotonic() < waiting.until:
            raise StorageError(waiting.problem)
        try:
            partition_count, wanted = self._look(topic, topic_id, leader_epochs, load)
        except StorageError as error:
            # A leader asks each second; what is missing seldom comes back, and is looked for in many folders.
            pause_s = min(waiting.pause_s * 2, PAUSE_S_MAX)
            self._waiting[topic_id] = _WaitingLoad(str(error), self._monotonic() + pause_s, pause_s)
            raise
        self._waiting.pop(topic_id, None)
        if wanted:
            # Those that are marked, too: a crash may have left their last step.
            self._copier.load(wanted, partition_count)
        return partition_count

    def _look(
        self, topic: str, topic_id: bytes, leader_epochs: Mapping[int, int], load: str
    ) -> tuple[int, dict[int, _Ranges]]:
        """How many partitions the load knew (0: nothing is to be done), and what it wrote for these."""
        try:
            told = decode_load(self._store.read(load_file(load)), topic)
        except FileNotFoundError:
            if not self._storage.not_loaded(topic, topic_id, leader_epochs):
                return 0, {}
            raise StorageError(
                f"its bulk load {load} is not in the lake: delete the topic"
            ) from None
        except BadLoad as error:
            raise StorageError(f"bulk load {load}: {error}") from None
        self._bind(topic_id, load)
        wanted = {
            partition: _loaded(topic, topic_id, told.files[partition], epoch, load)
            for partition, epoch in leader_epochs.items()
            if partition in told.files
        }
        if wanted:
            # Before anything is begun: attempts would be left behind.
            self._storage.expect(
                topic, topic_id, {n: written for n, (_, written) in wanted.items()}
            )
        return told.partition_count, wanted

    def _bind(self, topic_id: bytes, load: str) -> None:
        """Make the load this topic's. A topic that got the setting by a copy of another's must not get its rows."""
        mine, path = uuid_text(topic_id).encode(), owner_file(load)
        if not self._store.put_if_absent(path, mine):
            owner = self._store.read(path)
            if owner != mine:
                raise StorageError(
                    f"bulk load {load} is that of topic id {owner.decode(errors='replace')}: the setting lake.load was "
                    "copied; delete the topic, and create it without"
                )
        elif self._store.size(load_file(load)) is None:
            # Its topic was deleted since the list was read.
            self._store.delete(path)
            raise StorageError(f"its bulk load {load} is not in the lake: delete the topic")


def _loaded(
    topic: str, topic_id: bytes, files: Sequence[LoadedFile], leader_epoch: int, load: str
) -> _Ranges:
    """A range for each file, one after the other, and the files as they were written."""
    sources, written = [], []
    start_offset = 0
    for each in files:
        segment = RemoteLogSegment(
            topic=topic,
            topic_id=topic_id,
            partition=each.partition,
            # Offsets that a task was given and did not use are the range's, without a record.
            start_offset=start_offset,
            end_offset=each.max_offset,
            leader_epochs=((LEADER_EPOCH, start_offset),),
            leader_epoch=leader_epoch,
            size_bytes=each.log_bytes,
            lake_bytes=each.size,
            row_count=each.rows,
            max_timestamp_ms=each.max_timestamp_ms,
        )
        start_offset = each.max_offset + 1
        sources.append(
            LogSegmentData(
                segment=segment,
                path="",
                position=0,
                lineage=((LEADER_EPOCH, 0),),
                producer_snapshot=Producers().encode_snapshot(),
            )
        )
        written.append(
            WrittenFile(
                path=f"{topic_table(topic)}/{each.path(load)}",
                size=each.size,
                rows=each.rows,
                min_offset=each.min_offset,
                max_offset=each.max_offset,
                min_timestamp_ms=each.min_timestamp_ms,
                max_timestamp_ms=each.max_timestamp_ms,
                null_timestamps=0,
            )
        )
    return sources, written
