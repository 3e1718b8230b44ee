"""The rows of small files are read by the thread that asks: no thread of Arrow's outlives the work."""

import io
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ds.topic.file_rows import read_rows

COUNTED = """
import os, sys
from kafka_ds.topic.file_rows import read_rows
data = sys.stdin.buffer.read()
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
assert read_rows(data, ["b"]).num_rows == 10_000
print(threads() - before)
"""


def written() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"a": range(10_000), "b": [str(each) for each in range(10_000)]})
    pq.write_table(table, sink, row_group_size=1_000)
    return sink.getvalue()


def test_no_thread_is_started() -> None:
    words = [sys.executable, "-c", COUNTED]
    done = subprocess.run(
        words, input=written(), capture_output=True, check=True, env=dict(os.environ), timeout=120
    )
    assert done.stdout == b"0\n"


def test_some_columns_are_read() -> None:
    assert read_rows(written()).column_names == ["a", "b"]
    assert read_rows(written(), ["b"]).column_names == ["b"]
