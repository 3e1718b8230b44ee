"""Names and small files, byte for byte as Kafka's (compared with those that 4.3.1 wrote)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.epochs import LeaderEpochs
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.records.batch import read_header, stamp
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import (
    CorruptCheckpoint,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
    java_date,
)
from kafka_ds.segments.index import (
    AbortedTxn,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
    encode_aborted,
)
from kafka_ds.segments.producers import CorruptSnapshot, Producers
from tests.unit.log.log_model import client_batch


class TestNames:
    def test_segment_files(self) -> None:
        assert names.file_name(42, names.OFFSET_INDEX) == "00000000000000000042.index"
        parsed = names.parse_file_name("00000000000000000042.timeindex.deleted")
        assert parsed == (42, ".timeindex", ".deleted")
        assert names.parse_file_name("00000000000000000042.snapshot") == (42, ".snapshot", "")
        for other in ("42.log", "leader-epoch-checkpoint", "00000000000000000042.txt", "x" * 20):
            assert names.parse_file_name(other) is None

    def test_partition_folders(self) -> None:
        assert names.parse_folder_name("my-topic.v2-10") == ("my-topic.v2", 10, "")
        assert names.parse_folder_name("my-topic") is None
        assert names.parse_folder_name("-1") is None
        deleted = names.renamed_folder_name("my-topic.v2", 10, bytes(16), names.DELETE_FOLDER)
        assert deleted == f"my-topic.v2-10.{'0' * 32}-delete"
        assert names.parse_folder_name(deleted) == ("my-topic.v2", 10, "-delete")
        long = names.renamed_folder_name("t" * 249, 10, bytes(16), names.DELETE_FOLDER)
        assert len(long) == 255
        parsed = names.parse_folder_name(long)
        assert parsed is not None
        assert parsed.suffix == "-delete"


class TestCheckpoints:
    def test_offsets(self) -> None:
        offsets = {("tx", 0): 6021, ("lots", 1): 30000}
        data = b"0\n2\ntx 0 6021\nlots 1 30000\n"
        assert encode_offsets(offsets) == data
        assert decode_offsets(data) == offsets
        assert encode_offsets({}) == b"0\n0\n"
        assert decode_offsets(b"") == {}

    def test_epochs(self) -> None:
        assert encode_epochs([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
        assert decode_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]

    @pytest.mark.parametrize(
        "data",
        [
            b"0",
            b"0\n",
            b"1\n0\n",
            b"0\n2\na 0 1\n",
            b"0\n1\na 0 1",
            b"0\n1\na x 1\n",
            b"\xff",
            b"\0",
        ],
    )
    def test_what_is_cut_short_is_not_believed(self, data: bytes) -> None:
        for decode in (decode_offsets, decode_epochs):
            with pytest.raises(CorruptCheckpoint):
                decode(data)

    @given(data=st.binary(max_size=60))
    def test_any_bytes_are_read_or_refused(self, data: bytes) -> None:
        for decode in (decode_offsets, decode_epochs, decode_partition_metadata):
            try:
                decode(data)
            except CorruptCheckpoint:
                continue

    def test_partition_metadata(self) -> None:
        data = b"version: 0\ntopic_id: xaif0z8rQmC3qrp_SGsRdA"
        topic_id = uuid_from_text("xaif0z8rQmC3qrp_SGsRdA")
        assert decode_partition_metadata(data) == topic_id
        assert encode_partition_metadata(topic_id) == data

    def test_clean_shutdown(self) -> None:
        assert encode_clean_shutdown(12) == b'{"version":0,"brokerEpoch":12}'
        assert decode_clean_shutdown(b'{"version":0,"brokerEpoch":12}') == 12
        assert decode_clean_shutdown(b"") == -1

    def test_meta_properties(self) -> None:
        date = java_date((2026, 11, 21, 4, 32, 38, 5))
        data = encode_meta_properties(
            node_id=1,
            cluster_id="bGFiLWthZmthLXBlZXItMQ",
            directory_id=uuid_from_text("a043bEDuAuL01oHQDPjIHg"),
            date=date,
        )
        assert data == (
            b"#\n#Sat Nov 21 04:32:38 UTC 2026\nnode.id=1\ndirectory.id=a043bEDuAuL01oHQDPjIHg\n"
            b"version=1\ncluster.id=bGFiLWthZmthLXBlZXItMQ\n"
        )
        assert decode_meta_properties(data)["cluster.id"] == "bGFiLWthZmthLXBlZXItMQ"


class TestIndexes:
    def test_offset_index(self) -> None:
        index = OffsetIndex()
        for offset, position in ((9, 100), (19, 230), (40, 999)):
            index.append(offset, position)
        assert bytes(index.data[:8]) == struct.pack(">ii", 9, 100)
        expected = {0: 0, 8: 0, 9: 100, 18: 100, 19: 230, 39: 230, 40: 999, 1000: 999}
        for offset, position in expected.items():
            assert index.position_before(offset) == position
        assert index.entry_not_after(99) is None
        assert index.entry_not_after(230) == (19, 230)
        index = index.without(230)
        assert index.entry(index.count - 1) == (9, 100)

    def test_time_index(self) -> None:
        index = TimeIndex()
        index.append_if_later(-1, 0)
        index.append_if_later(1000, 5)
        index.append_if_later(1000, 9)
        index.append_if_later(2000, 12)
        assert bytes(index.data) == struct.pack(">qiqi", 1000, 5, 2000, 12)
        assert [index.offset_before(t) for t in (0, 1000, 1001, 2000, 2001)] == [0, 0, 5, 5, 12]

    def test_preallocated_zeros_are_no_entries(self) -> None:
        offsets, times = OffsetIndex(), TimeIndex()
        offsets.append(1 << 8, 1 << 16)  # Ends with zero bytes of its own.
        times.append_if_later(5, 1 << 8)
        padded = OffsetIndex.load(bytes(offsets.data) + bytes(800), log_bytes=1 << 20)
        assert padded.data == offsets.data
        padded_times = TimeIndex.load(bytes(times.data) + bytes(1200), last_relative_offset=1 << 10)
        assert padded_times.data == times.data

    def test_a_first_record_of_1970(self) -> None:
        times = TimeIndex()
        times.append_if_later(0, 0)
        assert TimeIndex.load(bytes(times.data), last_relative_offset=0).last_timestamp_ms == 0

    @pytest.mark.parametrize(
        "data",
        [
            b"1234567",
            struct.pack(">ii", 5, 2000),
            struct.pack(">ii", -5, 20),
            struct.pack(">iiii", 9, 90, 8, 100),
            struct.pack(">iiii", 9, 90, 10, 80),
        ],
    )
    def test_what_cannot_be_this_segments_index(self, data: bytes) -> None:
        with pytest.raises(CorruptIndex):
            OffsetIndex.load(data, log_bytes=1000)

    def test_aborted_transactions(self) -> None:
        entries = [AbortedTxn(1, 0, 300, 301), AbortedTxn(1, 903, 1203, 1204)]
        data = encode_aborted(entries)
        assert data[:34] == struct.pack(">hqqqq", 0, 1, 0, 300, 301)
        assert decode_aborted(data) == entries
        with pytest.raises(CorruptIndex):
            decode_aborted(data[:-1])


class TestProducerSnapshots:
    def producers(self) -> Producers:
        producers = Producers()
        for sequence in range(0, 9, 3):
            batch = client_batch(
                3,
                timestamp_ms=77,
                producer_id=5,
                producer_epoch=2,
                base_sequence=sequence,
                is_transactional=True,
            )
            stamp(batch, 0, base_offset=100 + sequence, leader_epoch=0)
            producers.update(read_header(batch))
        return producers

    def test_the_last_batch_of_each_producer_is_kept(self) -> None:
        data = self.producers().encode_snapshot()
        version, _, count = struct.unpack_from(">hIi", data)
        assert (version, count, len(data)) == (1, 1, 56)
        assert struct.unpack_from(">qhiqiqiq", data, 10) == (5, 2, 8, 108, 2, 79, -1, 100)
        restored = Producers.decode_snapshot(data)
        assert restored.encode_snapshot() == data
        assert restored.last_stable_offset(1000, 0) == 100
        assert Producers().encode_snapshot()[6:] == bytes(4)

    @given(position=st.integers(0, 55), bit=st.integers(0, 7))
    def test_a_flipped_bit_is_seen(self, position: int, bit: int) -> None:
        data = bytearray(self.producers().encode_snapshot())
        data[position] ^= 1 << bit
        with pytest.raises(CorruptSnapshot):
            Producers.decode_snapshot(bytes(data))

    @given(cut=st.integers(0, 55))
    def test_a_cut_is_seen(self, cut: int) -> None:
        with pytest.raises(CorruptSnapshot):
            Producers.decode_snapshot(self.producers().encode_snapshot()[:cut])


class TestLeaderEpochs:
    def test_who_owns_what(self) -> None:
        epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
        assert [epochs.epoch_for_offset(o) for o in (0, 9, 10, 29, 30, 99)] == [0, 0, 2, 2, 5, 5]
        assert epochs.between(5, 30) == ((0, 5), (2, 10))
        assert epochs.between(10, 31) == ((2, 10), (5, 30))

    def test_where_an_epoch_ends(self) -> None:
        """The cases of KIP-101 and KIP-279."""
        epochs = LeaderEpochs([(2, 10), (5, 30)])
        assert epochs.end_offset_for(5, 99) == (5, 99)
        assert epochs.end_offset_for(2, 99) == (2, 30)
        assert epochs.end_offset_for(4, 99) == (2, 30)
        assert epochs.end_offset_for(1, 99) == (1, 10)
        assert epochs.end_offset_for(6, 99) == (-1, -1)
        assert epochs.end_offset_for(-1, 99) == (-1, -1)
        assert LeaderEpochs().end_offset_for(0, 99) == (-1, -1)

    def test_an_epoch_without_records_gives_way(self) -> None:
        epochs = LeaderEpochs([(0, 0), (1, 10)])
        assert epochs.assign(2, 10)
        assert epochs.entries == ((0, 0), (2, 10))
        assert not epochs.assign(2, 15)

    def test_a_new_leader_replaces_what_contradicts_it(self) -> None:
        epochs = LeaderEpochs([(0, 0), (1, 10), (2, 20)])
        epochs.assign(3, 15)
        assert epochs.entries == ((0, 0), (1, 10), (3, 15))

    def test_truncation(self) -> None:
        epochs = LeaderEpochs([(0, 0), (1, 10), (2, 20)])
        assert epochs.truncate_from_end(20)
        assert epochs.entries == ((0, 0), (1, 10))
        assert epochs.latest_epoch == 1
        assert epochs.truncate_from_start(15)
        assert epochs.entries == ((1, 15),)
        assert not epochs.truncate_from_start(15)
        assert epochs.epoch_for_offset(14) == -1
