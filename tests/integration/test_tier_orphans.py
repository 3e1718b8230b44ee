"""What attempts that died have left is taken out in the end, and nobody misses it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from broker.worker.orphans import Orphans
from kafka_ds.delta.log import SystemLogClock
from kafka_ds.delta.store.uri import open_store
from tests.fakes.process_death import ProcessDied
from tests.integration.lake_bench import LakeBench
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    copy_range,
    copy_request,
    next_offset,
    records,
    segment,
)

DAYS_SECONDS = 8 * 86_400


def files(folder: Path) -> dict[str, float]:
    found = [*(folder / "partition=0").iterdir(), *(folder / "_residue" / "partition=0").iterdir()]
    return {str(each.relative_to(folder)): each.stat().st_mtime for each in found}


def test_files_of_a_dead_attempt_go_after_a_week(tmp_path: Path) -> None:
    lake = LakeBench("delta", tmp_path)
    folder = tmp_path / "lake" / "topics" / TOPIC
    request = copy_request([copy_range(segment(tmp_path / "0.log", 0, 10), 0, 9)])
    with pytest.raises(ProcessDied):
        lake.open("after_residue")[0].copy(request)
    left = set(files(folder))
    assert len(left) == 2
    # Another broker's worker takes the range: it knows nothing of the dead one's attempt.
    lake.settings = replace(lake.settings, node_id=2)
    lake.copy(request)
    reading = lake.open()[1]
    orphans = Orphans(open_store(lake.settings.lake_uri), SystemLogClock())
    orphans.are_due_in(f"topics/{TOPIC}")
    assert orphans.vacuum_due() == [], "it may be on its way yet"
    for name, modified in files(folder).items():
        os.utime(folder / name, (modified - DAYS_SECONDS,) * 2)
    reading.reader.read(PARTITION, 0, max_bytes=1, committed_only=False)
    later = Orphans(open_store(lake.settings.lake_uri), SystemLogClock())
    later.are_due_in(f"topics/{TOPIC}")
    gone = {each.removeprefix(f"topics/{TOPIC}/") for each in later.vacuum_due()}
    assert gone == left
    assert len(files(folder)) == 2
    assert lake.records() == records(0, 10)
    # Who knew of the residue that is gone finds the other one.
    again = reading.reader.read(PARTITION, 5, max_bytes=1, committed_only=False)
    assert next_offset(again.chunks) > 5
