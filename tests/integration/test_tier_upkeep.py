"""The upkeep of tables by a worker, where one of them cannot be looked after."""

from pathlib import Path
from typing import Any

import pytest

from broker.worker.rpc import FINISHED, CopyRequest, TierSettings
from broker.worker.service import Service
from kafka_ds.delta import maintenance
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.maintenance import BadCheckpoint
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.topic.names import REMOTE_LOG_METADATA, topic_table
from tests.fakes.store import begin_lake
from tests.integration.tier_segments import TOPIC, copy_range, copy_request, segment

RECORDS = 5
COPIES = 3


def test_one_table_without_a_checkpoint_keeps_no_other_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that cannot open one topic's table would leave the log of all events to grow for ever."""
    write = maintenance.write_checkpoint

    def write_most(log: DeltaLog) -> int:
        if log.table == topic_table(TOPIC):
            raise BadCheckpoint("what others wrote is not read alike")
        return write(log)

    monkeypatch.setattr(maintenance, "write_checkpoint", write_most)
    lake = tmp_path / "lake"
    begin_lake(lake)
    settings = TierSettings(
        lake_uri=str(lake), log_dirs=(), lake_copy_threads=1, lake_checkpoint_interval=2
    )
    service = Service(settings, CrashPoints())
    for number in range(COPIES):
        start = number * RECORDS
        source = segment(tmp_path / f"{number}.log", start, RECORDS)
        copied = copy_request([copy_range(source, start, start + RECORDS - 1)])
        answer: Any = service.writing()[CopyRequest](copied)
        assert [each.outcome for each in answer.partitions] == [FINISHED]
        service.afterwards()
    store = LocalStore(str(lake))
    assert DeltaLog(store, topic_table(TOPIC)).last_checkpoint() is None
    assert DeltaLog(store, REMOTE_LOG_METADATA).last_checkpoint() is not None
