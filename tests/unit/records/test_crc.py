"""CRC-32C: the published vectors, and both implementations alike."""

import random

import pytest

from kafka_ds.records import crc
from kafka_ds.records.crc import crc32c, portable_crc32c

VECTORS = {
    # RFC 3720, B.4
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize(("data", "expected"), VECTORS.items())
def test_published_vectors(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert portable_crc32c(data) == expected


def test_any_buffer_of_any_length() -> None:
    data = random.Random(1).randbytes((2 << 20) + 17)
    expected = portable_crc32c(data)
    assert crc32c(data) == crc32c(bytearray(data)) == crc32c(memoryview(data)) == expected
    assert crc32c(memoryview(data)[5:77]) == portable_crc32c(data[5:77])


def test_without_special_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc, "extend", None)
    assert crc32c(memoryview(b"123456789")) == 0xE3069283
