"""What several tests use: WorkerBench, put_version, data_files."""

from typing import Any

from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.rpc import PartitionOutcome
from kafka_ds.delta.actions import encode_actions
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.topic.remote_log_segment import RemoteLogSegmentState
from tests.fakes.settings import tier_settings
from tests.fakes.store import MemoryStore
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    all_records,
    cold_reads,
    copy_request,
)

TABLE = f"topics/{TOPIC}"


class WorkerBench:
    """What a worker process has, over a store in memory that outlives it."""

    def __init__(self, store: MemoryStore, node_id: int = 1, **more: Any) -> None:
        self.store = store
        settings = tier_settings(node_id=node_id, **more)
        self.storage = RemoteStorageManager(store, settings, CrashPoints(), clock=store.clock)
        self.metadata = RemoteLogMetadataManager(store, settings, CrashPoints(), clock=store.clock)
        self.copier = Copier(
            self.storage,
            self.metadata,
            node_id=node_id,
            crash_points=CrashPoints(),
            new_id=new_uuid,
        )

    def copy(self, *ranges: Any, topic_id: bytes = TOPIC_ID) -> list[PartitionOutcome]:
        return self.copier.copy(copy_request(ranges, topic_id=topic_id)).partitions

    def finished(self, partition: int = 0) -> list[tuple[int, int]]:
        return [
            (each.start_offset, each.end_offset)
            for each in self.metadata.list_segments(TOPIC_ID, partition)
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    def offsets(self, partition: int = 0) -> list[int]:
        found: list[int] = []
        for chunks in cold_reads(
            self.storage, partition=PARTITION._replace(partition=partition), max_bytes=1000
        ):
            found += [record.offset for record in all_records(chunks)]
        return found


def put_version(store: MemoryStore, *actions: Any) -> None:
    """A commit by somebody else."""
    log = DeltaLog(store, TABLE, clock=store.clock)
    version = log.latest_version() + 1
    assert store.put_if_absent(f"{TABLE}/{commit_file(version)}", encode_actions(actions))


def data_files(store: MemoryStore) -> list[str]:
    return [each for each in store.objects if each.startswith(TABLE) and each.endswith(".parquet")]
