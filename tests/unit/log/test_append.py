"""Appends: what a log accepts, what it refuses, and what it returns."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from broker.log.config import LOG_APPEND_TIME
from broker.log.log import Log
from broker.log.values import AppendInfo
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    Codec,
    ControlType,
    Record,
    build_batch,
    crc_is_valid,
    iterate_headers,
    read_header,
    read_records,
)
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.settings import log_settings
from tests.unit.log.batch_headers import with_header
from tests.unit.log.compressed_logs import NOW_MS, open_log
from tests.unit.log.log_model import client_batch, marker


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path, log_settings())


def append(
    log: Log, data: bytes | bytearray, *, epoch: int = 0, origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendInfo:
    return log.append(memoryview(bytearray(data)), leader_epoch=epoch, now_ms=NOW_MS, origin=origin)


def refused(log: Log, data: bytes | bytearray) -> ErrorCode:
    """The code of the refusal, after which nothing has changed."""
    end_offset, size = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as raised:
        append(log, data)
    assert (log.log_end_offset, log.size_bytes) == (end_offset, size)
    return raised.value.code


def everything(log: Log) -> bytes:
    found = log.read(
        log.local_log_start_offset,
        max_bytes=1 << 30,
        upper_bound_offset=log.log_end_offset,
        min_one_batch=True,
    )
    return b"".join(part.read() for part in found.slices)


def idempotent(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> bytes:
    return bytes(
        client_batch(
            count,
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def test_offsets_and_epoch_are_stamped_into_the_buffer(log: Log) -> None:
    first = append(log, client_batch(3, timestamp_ms=NOW_MS), epoch=4)
    buffer = client_batch(2, timestamp_ms=NOW_MS)
    second = log.append(memoryview(buffer), leader_epoch=5, now_ms=NOW_MS)
    assert (first.first_offset, first.last_offset) == (0, 2)
    assert (second.first_offset, second.last_offset, second.log_append_time_ms) == (3, 4, -1)
    header = read_header(buffer)
    assert (header.base_offset, header.leader_epoch) == (3, 5)
    assert crc_is_valid(buffer, 0, header)
    assert everything(log)[-len(buffer) :] == buffer
    assert log.leader_epochs.entries == ((4, 0), (5, 3))


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_pass_untouched(log: Log, codec: Codec) -> None:
    sent = bytes(client_batch(50, timestamp_ms=NOW_MS, codec=codec))
    append(log, sent)
    assert everything(log)[16:] == sent[16:]


def test_log_append_time_replaces_the_times_and_the_checksum(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_settings(message_timestamp_type=LOG_APPEND_TIME))
    info = append(log, client_batch(3, timestamp_ms=5))
    data = everything(log)
    header = read_header(data)
    assert info.log_append_time_ms == NOW_MS
    assert header.attributes & LOG_APPEND_TIME_FLAG
    assert crc_is_valid(data, 0, header)
    assert [record.timestamp for record in read_records(data)] == [NOW_MS] * 3
    found = log.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert found[:2] == (NOW_MS, 0)


class TestRefusals:
    """Each with Kafka's code."""

    good = bytes(client_batch(3, timestamp_ms=NOW_MS))

    def test_nothing(self, log: Log) -> None:
        assert refused(log, b"") is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("cut", [1, 16, 17, 60, 61, 80])
    def test_a_batch_cut_short(self, log: Log, cut: int) -> None:
        assert refused(log, self.good[:cut]) is ErrorCode.INVALID_RECORD

    def test_two_batches(self, log: Log) -> None:
        assert refused(log, self.good * 2) is ErrorCode.INVALID_RECORD

    def test_bytes_behind_the_batch(self, log: Log) -> None:
        assert refused(log, self.good + b"x") is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_message_formats(self, log: Log, magic: int) -> None:
        data = bytearray(self.good)
        data[16] = magic
        assert refused(log, data) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        assert refused(log, data[:30]) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT

    def test_a_magic_that_does_not_exist(self, log: Log) -> None:
        data = bytearray(self.good)
        data[16] = 3
        assert refused(log, data) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("length", [-1, 0, 13])
    def test_a_length_that_no_batch_has(self, log: Log, length: int) -> None:
        data = bytearray(self.good)
        struct.pack_into(">i", data, 8, length)
        assert refused(log, data) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("position", [17, 21, 40, 61, -1])
    def test_a_flipped_bit(self, log: Log, position: int) -> None:
        data = bytearray(self.good)
        data[position] ^= 4
        assert refused(log, data) is ErrorCode.CORRUPT_MESSAGE

    def test_an_offset_that_is_not_the_producers_to_give(self, log: Log) -> None:
        assert refused(log, with_header(self.good, base_offset=1)) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize(
        "changes",
        [
            {"record_count": 0},
            {"record_count": 2},
            {"record_count": -1, "last_offset_delta": -2},
            {"last_offset_delta": 3},
            {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
            {"attributes": CONTROL_FLAG},
            {"attributes": 5},
            {"attributes": 0x10},
            {"producer_id": 1, "producer_epoch": 0, "base_sequence": -1},
            {"producer_id": 1, "producer_epoch": -1, "base_sequence": 0},
        ],
        ids=str,
    )
    def test_headers_that_claim_what_cannot_be(self, log: Log, changes: dict[str, int]) -> None:
        assert refused(log, with_header(self.good, **changes)) is ErrorCode.INVALID_RECORD

    def test_a_compressed_batch_may_not_burn_offsets(self, log: Log) -> None:
        data = bytes(client_batch(3, timestamp_ms=NOW_MS, codec=Codec.ZSTD))
        lie = with_header(data, record_count=2**31 - 1, last_offset_delta=2**31 - 2)
        assert refused(log, lie) is ErrorCode.INVALID_RECORD

    def test_a_batch_that_compresses_very_well_is_taken(self, log: Log) -> None:
        alike = [Record(i, NOW_MS, None, bytes(10_000)) for i in range(1000)]
        data = build_batch(alike, codec=Codec.ZSTD)
        assert len(data) < 20_000
        assert append(log, data).last_offset == 999

    def test_a_timestamp_too_far_ahead(self, log: Log) -> None:
        hour = 3_600_000
        append(log, client_batch(1, timestamp_ms=NOW_MS + hour))
        late = client_batch(1, timestamp_ms=NOW_MS + hour + 1)
        assert refused(log, late) is ErrorCode.INVALID_TIMESTAMP

    def test_a_timestamp_too_far_back_anywhere_in_the_batch(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, log_settings(message_timestamp_before_max_ms=1000))
        times = [NOW_MS, NOW_MS - 1001, NOW_MS]
        records = [Record(i, time, None, b"") for i, time in enumerate(times)]
        assert refused(log, build_batch(records)) is ErrorCode.INVALID_TIMESTAMP
        append(log, build_batch([Record(0, NOW_MS - 1000, None, b""), Record(1, -1, None, b"")]))

    def test_a_producer_that_claims_the_brokers_time(self, log: Log) -> None:
        lie = with_header(self.good, attributes=LOG_APPEND_TIME_FLAG)
        assert refused(log, lie) is ErrorCode.INVALID_TIMESTAMP

    def test_too_large(self, tmp_path: Path) -> None:
        size = len(self.good)
        log = open_log(tmp_path, log_settings(max_message_bytes=size - 1))
        assert refused(log, self.good) is ErrorCode.MESSAGE_TOO_LARGE
        log.update_config(replace(log.config, max_message_bytes=size, segment_bytes=size - 1))
        assert refused(log, self.good) is ErrorCode.RECORD_LIST_TOO_LARGE
        log.update_config(replace(log.config, segment_bytes=size))
        append(log, self.good)


class TestIdempotence:
    """KIP-98's rules for one producer."""

    def test_a_duplicate_is_answered_as_the_first_time(self, log: Log) -> None:
        append(log, client_batch(5, timestamp_ms=NOW_MS))
        infos = [append(log, idempotent(sequence, 2)) for sequence in range(0, 10, 2)]
        size = log.size_bytes
        for sequence, info in zip(range(0, 10, 2), infos, strict=True):
            again = append(log, idempotent(sequence, 2))
            assert again.duplicate
            assert (again.first_offset, again.last_offset) == (info.first_offset, info.last_offset)
        assert log.size_bytes == size

    def test_only_five_batches_are_remembered(self, log: Log) -> None:
        for sequence in range(6):
            append(log, idempotent(sequence))
        assert refused(log, idempotent(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(log, idempotent(1)).duplicate

    def test_part_of_a_batch_is_no_duplicate(self, log: Log) -> None:
        append(log, idempotent(0, 4))
        assert refused(log, idempotent(0, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert refused(log, idempotent(2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_gap(self, log: Log) -> None:
        append(log, idempotent(0))
        assert refused(log, idempotent(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_an_unknown_producer_may_begin_anywhere(self, log: Log) -> None:
        append(log, idempotent(1234))
        assert append(log, idempotent(1235)).first_offset == 1

    def test_sequences_go_round(self, log: Log) -> None:
        last = 2**31 - 1
        append(log, idempotent(last - 1, 4))
        again = append(log, idempotent(last - 1, 4))
        assert again.duplicate
        assert append(log, idempotent(2)).first_offset == 4
        assert refused(log, idempotent(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_sequence_zero_follows_the_largest(self, log: Log) -> None:
        append(log, idempotent(2**31 - 1))
        assert append(log, idempotent(0)).first_offset == 1

    def test_a_new_epoch_begins_with_zero(self, log: Log) -> None:
        append(log, idempotent(0))
        assert refused(log, idempotent(1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        append(log, idempotent(0, epoch=1))
        assert not append(log, idempotent(1, epoch=1)).duplicate

    def test_an_old_epoch_is_fenced(self, log: Log) -> None:
        append(log, idempotent(0, epoch=3))
        assert refused(log, idempotent(0, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH

    def test_producers_do_not_disturb_each_other(self, log: Log) -> None:
        append(log, idempotent(0, producer_id=1))
        assert append(log, idempotent(0, producer_id=2)).first_offset == 1
        assert append(log, idempotent(1, producer_id=1)).first_offset == 2

    def test_a_silent_producer_is_forgotten(self, log: Log) -> None:
        append(log, idempotent(0))
        day = 24 * 3_600_000
        assert log.producers.expire(NOW_MS, day) == 0
        append(log, idempotent(1))
        assert log.producers.expire(NOW_MS + day, day) == 0
        assert log.producers.expire(NOW_MS + 2 * day - 1, day) == 0
        assert log.producers.expire(NOW_MS + 2 * day, day) == 1
        append(log, idempotent(17))


class TestTransactions:
    """Data that is not decided yet."""

    def begin(self, log: Log, producer_id: int, sequence: int = 0) -> AppendInfo:
        batch = client_batch(
            2,
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        return append(log, batch)

    def end(self, log: Log, control: ControlType, producer_id: int, epoch: int = 0) -> None:
        data = marker(control, producer_id, epoch=epoch, timestamp_ms=NOW_MS)
        append(log, data, origin=AppendOrigin.COORDINATOR)

    def test_the_last_stable_offset_waits_for_the_first_open_one(self, log: Log) -> None:
        append(log, client_batch(1, timestamp_ms=NOW_MS))
        self.begin(log, 1)
        self.begin(log, 2)
        end = log.log_end_offset
        assert log.last_stable_offset(end) == 1
        assert log.last_stable_offset(0) == 0
        self.end(log, ControlType.COMMIT, 1)
        assert log.last_stable_offset(5) == 1, "its marker is not committed"
        assert log.last_stable_offset(6) == 3
        self.end(log, ControlType.ABORT, 2)
        assert log.last_stable_offset(7) == 7
        assert [entry[:3] for entry in log.aborted_transactions(0, 7)] == [(2, 3, 6)]
        assert log.aborted_transactions(0, 3) == []

    def test_plain_records_may_not_come_between(self, log: Log) -> None:
        self.begin(log, 7)
        assert refused(log, idempotent(2)) is ErrorCode.INVALID_TXN_STATE

    def test_a_fenced_marker(self, log: Log) -> None:
        append(log, idempotent(0, epoch=3))
        with pytest.raises(KafkaError) as raised:
            self.end(log, ControlType.ABORT, 7, epoch=2)
        assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert log.log_end_offset == 1

    def test_a_bumped_marker_fences_the_old_epoch(self, log: Log) -> None:
        self.begin(log, 7)
        self.end(log, ControlType.ABORT, 7, epoch=1)
        assert refused(log, idempotent(2)) is ErrorCode.INVALID_PRODUCER_EPOCH


class TestReplicas:
    """What a follower appends."""

    def test_offsets_and_epochs_are_the_leaders(self, tmp_path: Path, log: Log) -> None:
        for epoch in range(3):
            append(log, client_batch(4, timestamp_ms=NOW_MS), epoch=epoch)
        follower = open_log(tmp_path / "follower", log_settings())
        data = everything(log)
        info = append(follower, data, origin=AppendOrigin.REPLICATION)
        assert (info.first_offset, info.last_offset) == (0, 11)
        assert everything(follower) == data
        assert follower.leader_epochs.entries == log.leader_epochs.entries

    def test_damage_and_offsets_that_go_back_are_refused(self, tmp_path: Path, log: Log) -> None:
        append(log, client_batch(4, timestamp_ms=NOW_MS))
        data = everything(log)
        follower = open_log(tmp_path / "follower", log_settings())
        append(follower, data, origin=AppendOrigin.REPLICATION)
        for bad in (data, data[:-1], data[:-1] + b"!"):
            with pytest.raises(KafkaError) as raised:
                append(follower, bad, origin=AppendOrigin.REPLICATION)
            assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert follower.log_end_offset == 4

    def test_gaps_of_compaction_are_taken(self, tmp_path: Path) -> None:
        follower = open_log(tmp_path, log_settings())
        for base in (3, 10, 2**31 + 50):
            batch = build_batch([Record(base, NOW_MS, b"k", b"v")], leader_epoch=1)
            append(follower, batch, origin=AppendOrigin.REPLICATION)
        assert follower.log_end_offset == 2**31 + 51
        assert follower.rolled_segments()[0].next_offset == 2**31 + 50
        found = follower.read(4, max_bytes=1000, upper_bound_offset=2**31 + 51, min_one_batch=True)
        headers = iterate_headers(found.slices[0].read())
        assert [header.base_offset for _, header in headers] == [10]
        for offset, expected in ((11, 2**31 + 50), (2**31 + 50, 2**31 + 50)):
            found = follower.read(
                offset, max_bytes=1000, upper_bound_offset=2**31 + 51, min_one_batch=True
            )
            data = found.slices[0].read()
            assert read_header(data).base_offset == expected
