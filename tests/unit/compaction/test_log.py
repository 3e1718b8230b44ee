"""What compaction leaves of a log: by key, of batches, of transactions; and what it does not touch."""

from __future__ import annotations

import errno

import pytest

from broker.cleaner.rpc import CleanSegments
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import (
    DELETE_HORIZON_FLAG,
    Codec,
    ControlType,
    Record,
    TimestampType,
    build_batch,
)
from kafka_ds.segments.index import AbortedTxn, encode_aborted
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.settings import cleaner_settings
from tests.unit.compaction.compaction_bench import CleanerBench, compacted

BIG = b"x" * 300


def test_the_last_value_of_each_key_stays_where_it_was() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1"), (b"b", b"1")])
    bench.append([(b"a", b"2"), (b"c", b"1")])
    bench.append([(b"b", b"2")])
    bench.log.roll()
    bench.append([(b"a", b"active")])
    assert bench.clean()
    assert bench.records() == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"a", b"active"),
    ]
    assert bench.log.compaction.cleaned_offset == 5
    assert not bench.clean()


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_frame(codec: Codec) -> None:
    bench = CleanerBench()
    bench.append(
        [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")],
        codec=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=40,
    )
    bench.append([(b"a", b"2"), (b"c", b"2")], producer_id=7, producer_epoch=3, base_sequence=43)
    before = bench.batches()[0][0]
    bench.log.roll()
    assert bench.clean()
    header, records = bench.batches()[0]
    assert [(r.offset, r.key, r.value) for r in records] == [(1, b"b", b"1")]
    assert header.codec == codec
    for name in ("base_offset", "last_offset_delta", "leader_epoch", "max_timestamp"):
        assert getattr(header, name) == getattr(before, name), name
    assert header[9:12] == (7, 3, 40)
    assert header.last_sequence == 42


def test_the_last_batch_of_a_producer_stays_empty() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1")], producer_id=7, producer_epoch=3, base_sequence=40)
    bench.append([(b"a", b"2")])
    bench.append([(b"b", b"2")])
    bench.log.roll()
    assert bench.clean()
    header, records = bench.batches()[0]
    assert (header.base_offset, header.record_count, records) == (0, 0, [])
    assert header[9:12] == (7, 3, 40)
    # What it keeps alive survives the loss of all snapshots.
    for path in bench.disk.paths():
        if path.endswith(".snapshot"):
            bench.disk.unlink(path)
    bench.disk.kill()
    bench.open()
    producer = bench.log.producers.get(7)
    assert producer is not None
    assert producer.last_sequence == 40


def test_tombstones_go_after_delete_retention_ms() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1")])
    bench.append([(b"a", None), (b"b", b"1")])
    bench.log.roll()
    bench.append([(b"z", b"1")])
    assert bench.clean()
    header, records = bench.batches()[0]
    assert [(r.offset, r.value) for r in records] == [(1, None), (2, b"1")]
    assert header.attributes & DELETE_HORIZON_FLAG
    assert header.base_timestamp == bench.clock.ms + 1000
    assert {r.timestamp for r in records} == {bench.clock.ms}
    bench.clock.ms += 999
    bench.log.roll()
    assert bench.clean()
    assert (1, b"a", None) in bench.records()
    bench.clock.ms += 1
    bench.append([(b"y", b"1")])
    bench.log.roll()
    assert bench.clean()
    assert bench.records() == [(2, b"b", b"1"), (3, b"z", b"1"), (4, b"y", b"1")]
    # Of records whose batch has a horizon the times can still be told.
    assert bench.batches()[0][1][0].timestamp == bench.clock.ms - 1000


def test_times_set_by_the_broker_stay() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1"), (b"b", None)], timestamp_type=TimestampType.LOG_APPEND_TIME)
    now_ms = bench.clock.ms
    bench.append([(b"a", b"2")])
    bench.log.roll()
    bench.clock.ms += 5
    assert bench.clean()
    header, records = bench.batches()[0]
    assert (header.timestamp_type, header.max_timestamp) == (1, now_ms)
    assert [(r.offset, r.timestamp) for r in records] == [(1, now_ms)]


def test_records_without_a_key_go() -> None:
    bench = CleanerBench()
    bench.append([(None, b"1"), (b"a", b"1"), (b"", b"empty is a key")])
    bench.log.roll()
    assert bench.clean()
    assert bench.records() == [(1, b"a", b"1"), (2, b"", b"empty is a key")]


def test_the_end_of_the_cleaned_part_is_kept() -> None:
    bench = CleanerBench()
    bench.append([(None, b"1")])
    bench.append([(None, b"2")])
    bench.log.roll()
    assert bench.clean()
    ((header, records),) = bench.batches()
    assert (header.base_offset, header.last_offset, records) == (1, 1, [])


def test_aborted_records_go_and_their_marker_follows() -> None:
    bench = CleanerBench()
    transaction = {"producer_id": 1, "producer_epoch": 0, "is_transactional": True}
    bench.append([(b"a", b"0")])
    bench.append([(b"a", b"aborted")], base_sequence=0, **transaction)
    bench.end(1, ControlType.ABORT)
    bench.append([(b"b", b"kept")], base_sequence=1, **transaction)
    bench.end(1, ControlType.COMMIT)
    bench.log.roll()
    assert bench.clean()
    assert bench.records() == [(0, b"a", b"0"), (3, b"b", b"kept")]
    # The marker of a transaction whose batches were met stays, and the index names it.
    assert bench.log.aborted_transactions(0, 9) == [AbortedTxn(1, 1, 2, 3)]
    assert [h.base_offset for h, _ in bench.batches() if h.is_control] == [2, 4]
    bench.append([(b"z", b"")])
    bench.log.roll()
    assert bench.clean()
    # Nothing is left of the aborted one: its marker may go in a while.
    assert bench.log.aborted_transactions(0, 9) == []
    markers = [header for header, _ in bench.batches() if header.is_control]
    assert [bool(header.attributes & DELETE_HORIZON_FLAG) for header in markers] == [True, False]
    bench.clock.ms += 1000
    bench.append([(b"y", b"")])
    bench.log.roll()
    assert bench.clean()
    assert [h.base_offset for h, _ in bench.batches() if h.is_control] == [4]


def test_the_last_marker_of_a_producer_stays_for_its_epoch() -> None:
    bench = CleanerBench()
    bench.append(
        [(b"a", b"aborted")],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    bench.end(1, ControlType.ABORT, epoch=1)
    for _ in range(3):
        bench.clock.ms += 1000
        bench.append([(b"b", b"")])
        bench.log.roll()
        assert bench.clean()
    (marker,) = [header for header, _ in bench.batches() if header.is_control]
    assert (marker.producer_epoch, marker.record_count) == (1, 0)


def test_an_open_transaction_stops_it() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1")])
    bench.append([(b"a", b"2")])
    bench.log.roll()
    bench.append(
        [(b"a", b"open")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    bench.log.roll()
    bench.append([(b"a", b"4")])
    bench.log.roll()
    assert bench.clean()
    assert bench.records() == [(1, b"a", b"2"), (2, b"a", b"open"), (3, b"a", b"4")]
    assert bench.log.compaction.cleaned_offset == 2


def test_what_is_not_committed_stops_it() -> None:
    bench = CleanerBench()
    for value in (b"1", b"2"):
        bench.append([(b"a", value)])
        bench.log.roll()
    bench.log.update_high_watermark(0)
    assert not bench.clean()
    bench.log.update_high_watermark(2)
    assert bench.clean()
    assert bench.records() == [(1, b"a", b"2")]


def test_small_segments_become_one() -> None:
    bench = CleanerBench()
    for index in range(12):
        bench.append([(b"k%d" % (index % 4), BIG)])
    bench.log.roll()
    before = bench.log.segments.all
    assert [s.base_offset for s in before] == [0, 2, 4, 6, 8, 10, 12]
    assert bench.clean()
    assert [s.size_bytes > 0 for s in bench.log.segments.all[:-1]] == [False] * 4 + [True] * 2
    bench.append([(b"z", b"")])
    bench.log.roll()
    assert bench.clean()
    assert [s.base_offset for s in bench.log.segments.all] == [0, 10, 13]
    assert [record[0] for record in bench.records()] == [8, 9, 10, 11, 12]
    # Who reads in what was there before reads on.
    assert [s.position_of(s.base_offset + 1) for s in before[:6]] == [372] * 6
    assert (
        bench.log.read(0, max_bytes=1, upper_bound_offset=13, min_one_batch=True).upper_bound_offset
        == 9
    )


def test_a_full_table_ends_the_part_that_is_cleaned() -> None:
    settings = cleaner_settings(
        log_cleaner_dedupe_buffer_size=24 * 5, log_cleaner_io_buffer_size=64
    )
    bench = CleanerBench(settings=settings)
    for index in range(12):
        bench.append([(b"k%d" % (index % 6), b"%d" % index)])
    bench.log.roll()
    assert bench.settings.keys_max == 4
    assert bench.clean()
    assert bench.log.compaction.cleaned_offset == 4
    while bench.clean():
        pass
    assert bench.records() == [(i, b"k%d" % (i - 6), b"%d" % i) for i in range(6, 12)]


def test_a_batch_with_more_keys_than_fit_makes_the_log_uncleanable() -> None:
    bench = CleanerBench(settings=cleaner_settings(log_cleaner_dedupe_buffer_size=24 * 5))
    bench.append([(b"k%d" % index, b"") for index in range(6)])
    bench.log.roll()
    assert bench.clean()
    assert "log.cleaner.dedupe.buffer.size" in bench.cleaner.uncleanable()["orders-0"]


def test_a_damaged_batch_makes_the_log_uncleanable_and_changes_nothing() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1")])
    bench.append([(b"a", b"2")])
    bench.log.roll()
    path = "/data/orders-0/00000000000000000000.log"
    assert isinstance(bench.disk, type(CleanerBench().disk))
    bench.disk.contents(path)[-3] ^= 1
    before = bytes(bench.disk.contents(path))
    assert bench.clean()
    assert "the batch at offset 1 is corrupt" in bench.cleaner.uncleanable()["orders-0"]
    assert bytes(bench.disk.contents(path)) == before
    assert not any(path.endswith(".cleaned") for path in bench.disk.paths())
    assert not bench.clean()
    samples = {metric.name: value for metric, _, value in bench.cleaner.samples()}
    assert samples["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 1
    assert samples["kafka_log_logcleanermanager_uncleanable_bytes"] == len(before)


@pytest.mark.parametrize("deletes", [False, True])
def test_an_index_that_says_nothing_makes_the_log_uncleanable_and_no_other(deletes: bool) -> None:
    policy = ("compact", "delete") if deletes else ("compact",)
    bench = CleanerBench(compacted(cleanup_policy=policy, retention_bytes=0))
    index = "/data/orders-0/00000000000000000000.txnindex"
    other = bench.manager.create(TopicPartition("others", 0), bytes(range(16)))
    for log in (bench.log, other):
        for number in range(2):
            batch = build_batch([Record(0, bench.clock.now_ms(), b"a", b"%d" % number)])
            log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=bench.clock.now_ms())
        log.roll()
    bench.manager.close()
    bench.disk.kill()
    file = bench.disk.open(index, create=True)
    file.write(encode_aborted([AbortedTxn(7, 0, 1, 2)]), 0)
    bench.disk.kill()
    bench.open()
    bench.disk.contents(index)[:2] = b"\x7f\x7f"
    while bench.clean():
        pass
    assert list(bench.cleaner.uncleanable()) == ["orders-0"]
    cleaned = bench.manager.get(TopicPartition("others", 0))
    assert cleaned is not None
    assert cleaned.log_start_offset == 2 if deletes else cleaned.compaction.cleaned_offset == 2
    assert list(bench.cleaner.samples())


def test_a_disk_that_refuses_is_asked_again() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1"), (b"a", b"2")])
    bench.log.roll()
    bench.disk.failing.add("write")
    assert not bench.clean()
    bench.disk.failing.clear()
    assert bench.cleaner.uncleanable() == {}
    assert bench.clean()
    assert bench.records() == [(1, b"a", b"2")]


def test_a_log_that_cannot_roll_for_want_of_room_is_asked_again() -> None:
    """Retention would take the active segment, too, which needs a new one."""
    policy = ("compact", "delete")
    bench = CleanerBench(compacted(cleanup_policy=policy, retention_ms=5000))
    bench.append([(b"a", b"1"), (b"a", b"2")])
    bench.clock.ms += 5001
    bench.disk.failing, bench.disk.failing_with = {"create"}, errno.ENOSPC
    assert not bench.clean()
    assert bench.cleaner.uncleanable() == {}
    bench.disk.failing = set()
    bench.clean()
    assert bench.log.log_start_offset == 2


def test_a_swap_for_which_no_file_can_be_opened_leaves_the_log_as_it_was() -> None:
    bench = CleanerBench()
    bench.append([(b"a", b"1"), (b"a", b"2")])
    bench.log.roll()
    bench.manager.close()
    bench.disk.kill()
    bench.open()
    bench.disk.failing_with = errno.EMFILE
    bench.meanwhile[CleanSegments] = lambda: bench.disk.failing.add("open")
    assert not bench.clean()
    bench.disk.failing.clear()
    bench.meanwhile.clear()
    assert bench.log.storage_error is None
    bench.append([(b"b", b"1")])
    assert bench.clean()
    assert bench.records() == [(1, b"a", b"2"), (2, b"b", b"1")]


def test_what_is_to_be_seen_is_seen_whatever_makes_a_log_uncleanable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("an unexpected error")

    bench = CleanerBench()
    bench.append([(b"a", b"1"), (b"a", b"2")])
    bench.log.roll()
    monkeypatch.setattr("broker.compaction.log_cleaner.cleanable", fail)
    bench.clean()
    assert list(bench.cleaner.uncleanable()) == ["orders-0"]
    assert list(bench.cleaner.samples())


def test_delete_and_compact_together() -> None:
    bench = CleanerBench(compacted(cleanup_policy=("compact", "delete"), retention_ms=5000))
    bench.append([(b"a", b"1"), (b"b", b"1")])
    bench.log.roll()
    bench.clock.ms += 3000
    bench.append([(b"a", b"2")])
    bench.log.roll()
    assert bench.clean()
    assert [record[0] for record in bench.records()] == [1, 2]
    assert len(bench.log.segments.all) == 2, "one closed segment, as old as its newest record"
    bench.clock.ms += 5001
    bench.append([(b"c", b"1")])
    bench.log.roll()
    assert bench.clean()
    assert bench.records() == [(3, b"c", b"1")]
    assert bench.log.log_start_offset == 3


def test_a_follower_takes_what_compaction_has_left() -> None:
    leader, follower = CleanerBench(), CleanerBench()
    for number in range(3):
        leader.append(
            [(b"a", b"%d" % number)],
            producer_id=1,
            producer_epoch=0,
            base_sequence=number,
            is_transactional=True,
        )
        leader.end(1, ControlType.ABORT if number else ControlType.COMMIT, epoch=number // 2)
    for _ in range(3):
        leader.clock.ms += 1000
        leader.append([(b"b", b"")])
        leader.log.roll()
        assert leader.clean()
    assert any(header.is_control and not header.record_count for header, _ in leader.batches())
    for segment in leader.log.segments.all:
        data = segment.file.read(segment.size_bytes, 0)
        if data:
            follower.log.append(
                memoryview(bytearray(data)),
                leader_epoch=0,
                now_ms=leader.clock.ms,
                origin=AppendOrigin.REPLICATION,
            )
    assert follower.records() == leader.records()
    assert follower.log.log_end_offset == leader.log.log_end_offset
    assert follower.log.last_stable_offset(9) == leader.log.last_stable_offset(9)
