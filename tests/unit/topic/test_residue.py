"""Residue files: they are read as written; a damaged file is reported by name and never used."""

from dataclasses import dataclass

import pytest

from kafka_ds.topic.batches.residue import CorruptResidue, Residue, ResidueHeader, encode_residue


@dataclass
class Batch:
    kind: str
    base_offset: int
    last_offset: int
    data: bytes


HEADER = ResidueHeader(
    topic_id=bytes(range(16)),
    partition=3,
    start_offset=100,
    end_offset=199,
    leader_epochs=((0, 100), (2, 150)),
    producer_snapshot=b"\0\1snapshot",
)
BATCHES = [
    Batch("aborted", 150, 159, b"b" * 700),
    Batch("control", 110, 110, b"a" * 78),
    Batch("undecodable", 160, 170, b""),
    Batch("empty", 171, 180, b"c" * 61),
]


def opened(data, name="x.residue"):
    return Residue(lambda start, length: data[start : start + length], name=name, size=len(data))


@pytest.fixture
def data():
    return b"".join(encode_residue(HEADER, BATCHES))


def test_what_goes_in_comes_out(data):
    residue = opened(data)
    header = residue.header
    assert (header.topic_id, header.partition) == (HEADER.topic_id, 3)
    assert (header.start_offset, header.end_offset) == (100, 199)
    assert header.leader_epochs == HEADER.leader_epochs
    assert header.producer_snapshot == HEADER.producer_snapshot
    assert [(each.kind, each.base_offset, each.last_offset) for each in header.batches] == [
        ("control", 110, 110),
        ("aborted", 150, 159),
        ("undecodable", 160, 170),
        ("empty", 171, 180),
    ]
    ordered = sorted(BATCHES, key=lambda each: each.base_offset)
    assert [residue.batch(place) for place in header.batches] == [each.data for each in ordered]


def test_batches_of_a_range(data):
    residue = opened(data)
    assert [each.base_offset for each in residue.header.find(110, 155)] == [110, 150]
    assert residue.header.find(0, 99) == []
    apart = [residue.header.batches[0], residue.header.batches[3]]
    assert [residue.batch(place) for place in apart] == [b"a" * 78, b"c" * 61]


def test_only_what_is_asked_for_is_read(data):
    reads = []

    def read(start, length):
        reads.append(length)
        return data[start : start + length]

    residue = Residue(read, name="x", size=len(data))
    (place,) = residue.header.find(110, 110)
    residue.batch(place)
    assert len(reads) == 3 and reads[-1] == 78


def test_a_range_without_residue_has_epochs_and_snapshot():
    residue = opened(b"".join(encode_residue(HEADER, [])))
    assert residue.header.batches == ()


@pytest.mark.parametrize("size", [0, 3, 15, 16, 40])
def test_a_truncated_file_is_named(data, size):
    with pytest.raises(CorruptResidue, match=r"x\.residue"):
        opened(data[:size])


def test_a_file_cut_within_its_batches_is_named(data):
    with pytest.raises(CorruptResidue, match="beyond the end of the file"):
        opened(data[:-1])


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_each_flipped_byte_is_found(data, position):
    spoiled = bytearray(data)
    spoiled[position] ^= 0x10
    with pytest.raises(CorruptResidue):
        residue = opened(bytes(spoiled))
        [residue.batch(place) for place in residue.header.batches]
        assert bytes(spoiled) == data


def test_every_byte_is_under_a_checksum(data):
    for position in range(len(data) - 839, len(data), 50):
        spoiled = bytearray(data)
        spoiled[position] ^= 1
        residue = opened(bytes(spoiled))
        with pytest.raises(CorruptResidue, match="wrong checksum"):
            [residue.batch(place) for place in residue.header.batches]


def sealed(text):
    import struct
    import zlib

    return struct.pack(">8sII", b"KDSRESI1", len(text), zlib.crc32(text)) + text


@pytest.mark.parametrize(
    "text",
    [b"{", b"[]", b"{}", b'{"format":2}', b'{"format":1,"kind":["a"],"baseOffset":[]}'],
)
def test_a_header_that_lacks_what_it_must_hold_is_named(text):
    with pytest.raises(CorruptResidue, match=r"x\.residue"):
        opened(sealed(text))


def test_an_absurd_length_allocates_nothing():
    with pytest.raises(CorruptResidue, match="a header of 4294967295 bytes in a file of 20"):
        opened(b"KDSRESI1" + b"\xff" * 8 + b"1234")
