"""Lines, keys and where a key goes."""

import os

import numpy as np
import pytest

from broker.cli.options import CommandError
from broker.cli.produce import key_and_value, lines_of, murmur2
from kafka_ds.records import partitioner


@pytest.mark.parametrize("key", [b"", b"a", b"ab", b"abc", b"abcd", b"\xff" * 21, b"kafka" * 100])
def test_a_key_goes_where_that_of_a_column_goes(key: bytes) -> None:
    data = np.frombuffer(key or b"\0", np.uint8)
    assert murmur2(key) == int(partitioner.murmur2(data, 0, len(key)))


def test_lines_come_as_they_are_written() -> None:
    reads, writes = os.pipe()
    lines = lines_of(reads)
    os.write(writes, b"one\ntw")
    assert next(lines) == [b"one"]
    os.write(writes, b"o\r\n\nthr")
    assert next(lines) == [b"two", b""]
    os.write(writes, b"ee")
    os.close(writes)
    assert list(lines) == [[b"three"]]
    os.close(reads)


def test_a_line_is_cut_at_the_first_separator() -> None:
    assert key_and_value(b"a:b:c", b":", None) == (b"a", b"b:c")
    assert key_and_value(b"a:b", None, None) == (None, b"a:b")
    assert key_and_value(b"NULL:NULL", b":", b"NULL") == (None, None)
    with pytest.raises(CommandError, match="no --key-separator"):
        key_and_value(b"a", b":", None)
