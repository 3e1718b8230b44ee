"""Logs of replicas through random elections: they end up identical, and committed records are never truncated."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.log import Log, runs
from broker.log.values import RemoteLogAuxState
from broker.replica.follower.state import FetchState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.data import FetchPartitionData
from kafka_ds.records.batch import BatchHeader, ControlType, iterate_headers
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.log.log_model import client_batch, marker
from tests.unit.replica.followed_logs import (
    NOW_MS,
    answer,
    append,
    content,
    followed,
    open_log,
    step,
)

REPLICAS = 3


class PartitionModel:
    """Replicas of one partition. `committed` is a prefix that every replica in sync has had."""

    def __init__(self, *, compares_on_fetch: bool) -> None:
        self.logs = [open_log(MemoryDisk()) for _ in range(REPLICAS)]
        self.partitions = [followed(log) for log in self.logs]
        self.compares_on_fetch = compares_on_fetch
        self.epoch = 0
        self.leader = 0
        self.committed = b""
        self.committed_end = 0
        self.elect(0)

    def elect(self, leader: int) -> None:
        self.epoch += 1
        self.leader = leader
        log = self.logs[leader]
        log.assign_leader_epoch(self.epoch, log.log_end_offset)
        for index in range(REPLICAS):
            if index != leader:
                self._follow(index)

    def _follow(self, index: int) -> None:
        self.partitions[index].follow(self.leader, self.epoch)
        if not self.compares_on_fetch:
            self.partitions[index].follower.truncate_before_fetching()

    def append(self, text: str, count: int) -> None:
        append(self.logs[self.leader], text, self.epoch, count=count)

    def fetch(self, index: int, times: int) -> None:
        if index == self.leader:
            return
        for _ in range(times):
            step(self.partitions[index], self.logs[self.leader], watermark=self.committed_end)

    def commit(self) -> None:
        """What all replicas that fetch under this leader have is committed."""
        leader = self.logs[self.leader]
        ends = [leader.log_end_offset]
        for index, partition in enumerate(self.partitions):
            if index == self.leader:
                continue
            data = answer(leader, partition.to_fetch_partition(1))
            agrees = data.error_code == ErrorCode.NONE and data.diverging_epoch is None
            ends.append(partition.follower.fetch_offset if agrees else 0)
        if min(ends) > self.committed_end:
            self.committed_end = min(ends)
            self.committed = content(leader, self.committed_end)

    def settle(self) -> None:
        """Let every follower catch up."""
        leader = self.logs[self.leader]
        for index, partition in enumerate(self.partitions):
            if index == self.leader:
                continue
            for _ in range(200):
                if not step(partition, leader, watermark=self.committed_end):
                    break
            else:
                raise AssertionError("a follower never catches up")

    def check(self) -> None:
        for log in self.logs:
            assert log.log_end_offset >= self.committed_end
            assert content(log, self.committed_end) == self.committed


moves = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("fetch"), st.integers(0, REPLICAS - 1), st.integers(1, 4)),
        st.tuples(st.just("elect"), st.integers(0, REPLICAS - 1)),
        st.tuples(st.just("commit")),
    ),
    max_size=40,
)


def epochs_that_wrote(log: Log) -> list[tuple[int, int]]:
    return [entry for entry in log.leader_epochs.entries if entry[1] < log.log_end_offset]


def run(cluster: PartitionModel, chosen: list[tuple[object, ...]]) -> None:
    for number, move in enumerate(chosen):
        match move:
            case ("append", int(count)):
                cluster.append(f"{cluster.leader} in {cluster.epoch}, {number}", count)
            case ("fetch", int(index), int(times)):
                cluster.fetch(index, times)
            case ("elect", int(index)):
                cluster.elect(index)
            case _:
                cluster.commit()
        cluster.check()
    cluster.settle()
    cluster.check()
    leader = cluster.logs[cluster.leader]
    for log in cluster.logs:
        assert content(log) == content(leader)
        assert epochs_that_wrote(log) == epochs_that_wrote(leader)


@settings(max_examples=150, deadline=None)
@given(moves, st.booleans())
def test_replicas_end_as_one_log_and_lose_nothing_committed(
    chosen: list[tuple[object, ...]], compares_on_fetch: bool
) -> None:
    run(PartitionModel(compares_on_fetch=compares_on_fetch), chosen)


def batches(log: Log) -> list[BatchHeader]:
    return [header for _, header in iterate_headers(content(log))]


def test_what_is_derived_of_records_is_the_same_as_on_the_leader() -> None:
    """Producers, open and aborted transactions, epochs: all of them follow from the appended batches."""
    leader, log = open_log(MemoryDisk()), open_log(MemoryDisk())
    leader.assign_leader_epoch(2, 0)
    for number in range(12):
        batch = client_batch(
            2,
            timestamp_ms=NOW_MS,
            producer_id=7,
            producer_epoch=0,
            base_sequence=2 * number,
            is_transactional=True,
        )
        leader.append(memoryview(batch), leader_epoch=2, now_ms=NOW_MS)
        if number % 3 == 2:
            kind = ControlType.ABORT if number % 2 else ControlType.COMMIT
            append_marker(leader, kind)
    partition = followed(log)
    partition.follow(2, 2)
    while step(partition, leader, watermark=leader.log_end_offset):
        pass
    assert content(log) == content(leader)
    assert log.producers.fingerprint() == leader.producers.fingerprint()
    end = leader.log_end_offset
    assert log.aborted_transactions(0, end) == leader.aborted_transactions(0, end)
    assert len(log.aborted_transactions(0, end)) == 2
    assert log.last_stable_offset(end) == leader.last_stable_offset(end)
    assert log.leader_epochs.entries == leader.leader_epochs.entries
    assert partition.high_watermark == end
    assert len(log.rolled_segments()) > 1


def append_marker(log: Log, kind: ControlType) -> None:
    data = memoryview(marker(kind, 7, timestamp_ms=NOW_MS))
    log.append(data, leader_epoch=2, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


# -- the log of a follower ----------------------------------------------------------------------


def leader_of(*epochs: int) -> Log:
    log = open_log(MemoryDisk())
    for epoch in epochs:
        append(log, "x" * 40, epoch)
    return log


def test_nothing_above_the_epoch_of_the_question_is_appended() -> None:
    """KAFKA-18723: between question and answer the log may have been cut for another leader."""
    leader, log = leader_of(1, 1, 3, 3), open_log(MemoryDisk())
    records = memoryview(bytearray(content(leader)))
    log.append_as_follower(records, leader_epoch=2, now_ms=NOW_MS)
    assert [header.leader_epoch for header in batches(log)] == [1, 1]
    assert log.leader_epochs.entries == ((1, 0),)


def test_half_a_batch_at_the_end_is_dropped() -> None:
    leader, log = leader_of(1, 1, 1), open_log(MemoryDisk())
    records = memoryview(bytearray(content(leader)))
    log.append_as_follower(records[:-5], leader_epoch=1, now_ms=NOW_MS)
    assert log.log_end_offset == 2
    assert log.append_as_follower(records[-5:], leader_epoch=1, now_ms=NOW_MS) == 0


def test_no_segment_of_a_follower_is_larger_than_its_setting_allows() -> None:
    leader, log = leader_of(*[1] * 40), open_log(MemoryDisk())
    records = memoryview(bytearray(content(leader)))
    assert len(records) > 4 * log.config.segment_bytes
    log.append_as_follower(records, leader_epoch=1, now_ms=NOW_MS)
    assert content(log) == bytes(records)
    assert all(view.size_bytes <= log.config.segment_bytes for view in log.rolled_segments())


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(0, 4), st.integers(1, 700))
def test_runs_are_all_batches_up_to_the_bound(
    epochs: list[int], bound: int, run_bytes: int
) -> None:
    records = memoryview(bytearray(content(leader_of(*sorted(epochs)))))
    joined = b"".join(runs(records, bound, run_bytes))
    kept = [header for _, header in iterate_headers(joined)]
    assert [header.leader_epoch for header in kept] == [e for e in sorted(epochs) if e <= bound]
    for run_ in runs(records, bound, run_bytes):
        assert len(run_) <= run_bytes or len(list(iterate_headers(bytes(run_)))) == 1


def refused(log: Log, records: bytes | bytearray) -> ErrorCode:
    try:
        log.append_as_follower(memoryview(bytearray(records)), leader_epoch=9, now_ms=NOW_MS)
    except KafkaError as error:
        return error.code
    raise AssertionError("it was taken")


def test_damage_and_offsets_that_go_back_are_refused() -> None:
    leader = leader_of(1, 1)
    records = bytearray(content(leader))
    log = open_log(MemoryDisk())
    records[-1] ^= 1
    assert refused(log, records) is ErrorCode.CORRUPT_MESSAGE
    records[-1] ^= 1
    log.append_as_follower(memoryview(records), leader_epoch=1, now_ms=NOW_MS)
    assert refused(log, records) is ErrorCode.CORRUPT_MESSAGE
    records[8:12] = b"\x80\0\0\0"
    assert refused(log, records) is ErrorCode.CORRUPT_MESSAGE
    assert content(log) == content(leader)


def test_a_log_that_was_to_begin_within_a_batch_begins_with_it() -> None:
    """DeleteRecords on the leader may leave its log start in the middle of a batch."""
    leader, log = open_log(MemoryDisk()), open_log(MemoryDisk())
    append(leader, "x", 1, count=10)
    append(leader, "y", 1, count=10)
    leader.update_high_watermark(20)
    leader.advance_log_start_offset(5)
    partition = followed(log)
    partition.follow(2, 1)
    partition.restart_at(5, RemoteLogAuxState(leader_epochs=((1, 5),)))
    while step(partition, leader, watermark=20):
        pass
    assert (log.log_end_offset, log.log_start_offset) == (20, 5)
    assert content(log) == content(leader)


def test_a_log_that_begins_anew_forgets_what_it_knew() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for epoch in (1, 2, 3):
        append(log, "x" * 40, epoch, count=10)
    log.flush(wait=True)
    log.restart_at(100, RemoteLogAuxState(leader_epochs=((7, 100),)))
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (100, 100, 0)
    assert log.leader_epochs.entries == ((7, 100),)
    disk.kill()
    again = open_log(disk)
    assert again.log_end_offset == 100
    assert again.leader_epochs.entries in (((7, 100),), ())


@pytest.mark.parametrize("anew", [True, False])
def test_a_follower_knows_where_a_log_ends_that_the_disk_did_not_cut(*, anew: bool) -> None:
    """Of a log that is to begin anew all may be gone already."""
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(40):
        append(log, "x" * 40, 1)
    partition = followed(log)
    partition.follow(2, 1)
    disk.failing, disk.failing_with = {"create" if anew else "truncate"}, errno.EMFILE
    with pytest.raises(OSError, match="fails"):
        partition.restart_at(50) if anew else partition.truncate_to(25)
    assert log.log_end_offset == (0 if anew else 40)
    assert partition.follower.fetch_offset == log.log_end_offset
    assert partition.follower.state is FetchState.TRUNCATING, "the leader is asked again"
    disk.failing = set()
    partition.restart_at(50)
    assert partition.follower.fetch_offset == log.log_end_offset == 50
    assert partition.follower.state is FetchState.FETCHING


def test_a_log_is_cut_below_its_first_segment() -> None:
    log = open_log(MemoryDisk())
    for _ in range(40):
        append(log, "x" * 40, 1)
    log.update_high_watermark(40)
    log.advance_log_start_offset(20)
    log.truncate_to(10)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)


def test_a_follower_begins_where_its_leader_begins() -> None:
    leader, log = leader_of(*[1] * 10), open_log(MemoryDisk())
    partition = followed(log)
    partition.follow(2, 1)
    while step(partition, leader, watermark=10):
        pass
    data = FetchPartitionData(partition_index=0, high_watermark=10, log_start_offset=4, records=b"")
    partition.append(data, 1, NOW_MS)
    assert log.log_start_offset == 4
