"""A worker's memory is no larger after many topics were created and deleted than after a few."""

import gc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest

from broker.worker import copier as copying
from broker.worker.copier import Copier
from broker.worker.delta import reader as delta_reader
from broker.worker.delta import storage as delta_storage
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.maintenance import TableMaintenance
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.orphans import Orphans
from broker.worker.sweeper import Sweeper
from kafka_ds.delta.actions import DAY_MS
from kafka_ds.delta.store import local as store_local
from kafka_ds.delta.store.uri import open_store
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.names import TOPICS
from tests.fakes.clock import ManualClock
from tests.fakes.settings import tier_settings
from tests.fakes.store import begin_lake
from tests.integration.tier_segments import (
    copy_range,
    copy_request,
    next_offset,
    segment,
)

# Their own globals, classes and caches are the process's.
OUTSIDE = (ModuleType, FunctionType, BuiltinFunctionType, type)


def reachable(roots: Iterable[object]) -> Counter[str]:
    """How many objects of each type are reachable; without numbers, since Python shares small ones."""
    seen: dict[int, object] = {}
    left = list(roots)
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, OUTSIDE):
            seen[id(each)] = each
            left += gc.get_referents(each)
            if isinstance(each, dict):
                left += each  # Keys that are text are not told.
    kept = (each for each in seen.values() if not isinstance(each, int | float))
    return Counter(type(each).__qualname__ for each in kept)


def test_topics_that_come_and_go_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is bounded by a number is full after the first topics.
    for module, name in (
        (copying, "GIVEN_UP_MAX"),
        (delta_reader, "ENDS_MAX"),
        (delta_reader, "PLACES_MAX"),
        (delta_storage, "FOOTERS_MAX"),
        (store_local, "KNOWN_FOLDERS_MAX"),
    ):
        monkeypatch.setattr(module, name, 1)
    begin_lake(tmp_path / "lake")
    settings, points = tier_settings(lake_uri=str(tmp_path / "lake"), node_id=1), CrashPoints()
    store = open_store(settings.lake_uri)
    storage = RemoteStorageManager(store, settings, points)
    metadata = RemoteLogMetadataManager(store, settings, points)
    maintenance = TableMaintenance(store, points, ManualClock(), interval=100)
    copier = Copier(storage, metadata, node_id=1, crash_points=points, new_id=new_uuid)
    sweeper = Sweeper(storage, metadata, copier, points)
    clock = ManualClock()
    orphans = Orphans(open_store(settings.lake_uri), clock)
    path = segment(tmp_path / "segment", 0, 10)

    def come_and_go(number: int) -> None:
        topic, topic_id = f"short-{number:02d}", new_uuid()
        answer = copier.copy(copy_request([copy_range(path, 0, 9)], topic=topic, topic_id=topic_id))
        assert [each.outcome for each in answer.partitions] == ["finished"]
        for committed_only in (True, False):
            read = storage.reader.read(
                TopicIdPartition(topic_id, topic, 0),
                0,
                max_bytes=1 << 20,
                committed_only=committed_only,
            )
            assert next_offset(read.chunks) == 10
        assert storage.aux_state.at(TopicIdPartition(topic_id, topic, 0), 9).end_offset == 9
        assert [each.end_offset for each in metadata.list_segments(topic_id, 0)] == [9]
        storage.maintain(topic, maintenance)
        clock.ms += DAY_MS
        orphans.are_due_in(f"{TOPICS}/{topic}")
        orphans.vacuum_due()
        copier.give_up(topic_id, 0, 1)
        assert copier.is_given_up(topic_id, 0, 1)
        sweeper.delete_topic(topic, topic_id)
        assert metadata.list_topic(topic_id) == []

    for number in range(3):
        come_and_go(number)
    before = reachable([storage, metadata, copier, sweeper, orphans])
    for number in range(3, 6):
        come_and_go(number)
    assert reachable([storage, metadata, copier, sweeper, orphans]) - before == Counter()
