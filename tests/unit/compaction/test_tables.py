"""What compaction leaves of a log that is a table: it follows the copies, and goes by what the lake alone has."""

from __future__ import annotations

from broker.cleaner.rpc import CleanSegments
from broker.remote.local_deletion import delete_local_segments
from tests.unit.compaction.compaction_bench import CleanerBench, compacted


def test_tombstones_stay_for_what_is_in_the_lake_alone() -> None:
    """A reader from the beginning finds the older values there: without the tombstone, the key would be back."""
    bench = CleanerBench(compacted(remote_storage_enable=True))
    bench.log.truncate_fully_and_start_at(10)
    bench.append([(b"a", None)])
    bench.log.roll()
    bench.append([(b"z", b"1")])
    for _ in range(2):
        bench.log.update_highest_offset_in_remote_storage(bench.log.log_end_offset - 1)
        assert bench.clean()
        bench.clock.ms += 2000
        bench.append([(b"y", b"1")])
        bench.log.roll()
    assert (10, b"a", None) in bench.records()
    bench.log.advance_log_start_offset(10)
    # Until now readers could begin where the older values were: they have delete.retention.ms to come this far.
    for stays in (True, True, False):
        bench.log.update_highest_offset_in_remote_storage(bench.log.log_end_offset - 1)
        assert bench.clean()
        assert ((10, b"a", None) in bench.records()) is stays
        bench.clock.ms += 600
        bench.append([(b"x", b"1")])
        bench.log.roll()


def test_a_log_waits_for_the_lake() -> None:
    bench = CleanerBench(compacted(remote_storage_enable=True))
    for value in (b"1", b"2", b"3"):
        bench.append([(b"a", value)])
        bench.log.roll()
    assert not bench.clean()
    bench.log.update_highest_offset_in_remote_storage(1)
    assert bench.clean()
    assert bench.records() == [(1, b"a", b"2"), (2, b"a", b"3")]
    bench.log.update_highest_offset_in_remote_storage(2)
    assert bench.clean()
    assert bench.records() == [(2, b"a", b"3")]


def test_a_log_that_becomes_a_table_is_cleaned_no_further() -> None:
    """Its segments are on their way to the lake from that moment on."""
    bench = CleanerBench()
    for value in (b"1", b"2", b"3"):
        bench.append([(b"a", value)])
        bench.log.roll()
    before, table = bench.records(), compacted(remote_storage_enable=True)
    bench.meanwhile[CleanSegments] = lambda: bench.log.update_config(table)
    assert bench.clean()
    assert bench.records() == before
    assert not bench.clean()
    bench.log.update_highest_offset_in_remote_storage(2)
    assert bench.clean()
    assert bench.records() == [(2, b"a", b"3")]


def test_retention_waits_for_a_cleaning_also_when_a_copy_is_done() -> None:
    """Else the cleaner would find others in the place of the segments that it replaces."""
    policy = ("compact", "delete")
    config = compacted(remote_storage_enable=True, cleanup_policy=policy, retention_ms=1000)
    bench = CleanerBench(config)
    for value in (b"1", b"2", b"3"):
        bench.append([(b"a", value)])
        bench.log.roll()
    bench.log.update_highest_offset_in_remote_storage(1)

    def copy() -> None:
        bench.clock.ms += 2000
        delete_local_segments(bench.log, 2, bench.clock)

    bench.meanwhile[CleanSegments] = copy
    assert bench.clean()
    assert bench.cleaner.uncleanable() == {}
    assert bench.records() == [(1, b"a", b"2"), (2, b"a", b"3")]
    assert not bench.clean()
    assert bench.log.log_start_offset == 3
