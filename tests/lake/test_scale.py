"""A table of 50,000 files: everything is right; how long it takes is printed (pytest -s), not asserted."""

import random
import time

import pytest

from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.lake_rows import commit, copy_of
from tests.lake.large_table import PARTITIONS, table_of


class Timer:
    """Prints what took how long."""

    def __init__(self):
        self.began = time.perf_counter()

    def lap(self, text, *, times=1):
        now = time.perf_counter()
        print(f"  {text:<40} {(now - self.began) / times * 1e6:12.1f} us")
        self.began = time.perf_counter()


@pytest.mark.slow
@pytest.mark.parametrize("count", [500, 50_000])
def test_a_table_of_many_files(tmp_path, count):
    store = LocalStore(str(tmp_path))
    table, end = table_of(store, count)
    print(f"\n{count} files")
    timer = Timer()
    snapshot = TopicSnapshot.load(store, "orders")
    timer.lap("load from commits")
    write_checkpoint(table.log)
    timer.lap("write and prove a checkpoint")
    snapshot = TopicSnapshot.load(store, "orders")
    timer.lap("load from a checkpoint")
    assert len(snapshot.files) == count and snapshot.highest_offset_in_remote_storage(3) == end
    lots = random.Random(1)
    wanted = [(lots.randrange(PARTITIONS), lots.randrange(end)) for _ in range(20_000)]
    timer.lap("(drawing lots)")
    found = [snapshot.index.find(*place, place[1]) for place in wanted]
    timer.lap("find an offset", times=len(wanted))
    assert all(
        len(files) == 1 and files[0].min_offset <= offset <= files[0].max_offset
        for files, (_, offset) in zip(found, wanted, strict=True)
    )
    table.read()
    parts = [copy_of(table, 0, end + 1 + 10 * n, end + 10 + 10 * n) for n in range(20)]
    timer.lap("(writing files)")
    for part in parts:
        commit(table, part)
    timer.lap("commit a range", times=len(parts))
    assert snapshot.refresh() and snapshot.highest_offset_in_remote_storage(0) == end + 200
    timer.lap("follow twenty commits")
    assert len(snapshot.index.find(0, end - 5, end + 15)) == 3
    timer.lap("find after that")
