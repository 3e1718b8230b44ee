"""What several tests use: ProcessDied, RaisingCrashPoints, LakeBench, lake."""

from pathlib import Path

from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.rpc import CopyAnswer, CopyRequest
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.records.batch import Record
from kafka_ds.topic.lake import open_lake
from tests.fakes.process_death import ProcessDied
from tests.fakes.settings import tier_settings
from tests.fakes.store import begin_lake
from tests.integration.tier_segments import (
    PARTITION,
    all_records,
    cold_reads,
)
from tests.s3_server import address_for


class RaisingCrashPoints(CrashPoints):
    """Raises instead of killing the test."""

    def at(self, point: str) -> None:
        if point in self._left:
            raise ProcessDied(point)


class LakeBench:
    """One remote storage that outlives the copiers which use it."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.root = root
        uri = address_for(root) if kind == "s3" else str(root / "lake")
        if kind != "s3":
            begin_lake(root / "lake")
        self.settings = tier_settings(lake_uri=uri, node_id=1)

    def open(
        self, crash_at: str = ""
    ) -> tuple[Copier, RemoteStorageManager, RemoteLogMetadataManager]:
        """What a freshly started worker has."""
        points = RaisingCrashPoints({crash_at: 1})
        store = open_lake(self.settings.lake_uri, is_there=True)
        storage = RemoteStorageManager(store, self.settings, points)
        metadata = RemoteLogMetadataManager(store, self.settings, points)
        copier = Copier(storage, metadata, node_id=1, crash_points=points, new_id=new_uuid)
        return copier, storage, metadata

    def copy(self, request: CopyRequest) -> CopyAnswer:
        return self.open()[0].copy(request)

    def records(
        self, offset: int = 0, *, partition: int = 0, end: int | None = None
    ) -> list[Record]:
        """Everything from an offset on, read as a consumer does."""
        storage = self.open()[1]
        found: list[Record] = []
        for chunks in cold_reads(
            storage,
            offset,
            partition=PARTITION._replace(partition=partition),
            max_bytes=4096,
            committed_only=False,
        ):
            found.extend(all_records(chunks))
        return found
