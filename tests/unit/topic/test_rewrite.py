"""Rewritten files keep what others have added, unchanged."""

import datetime as dt
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.fakes.lake_rows import batch_of
from tests.fakes.store import MemoryStore

FAR = dt.datetime(2500, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_old_timestamps_in_a_column_of_others(kind: str, tmp_path: Path) -> None:
    """INT96, as Spark may write times: in the column that was added, and in ours."""
    store: Store = LocalStore(str(tmp_path)) if kind == "local" else MemoryStore()
    time_ms = int(FAR.timestamp()) * 1000
    files = []
    for offset in (0, 1):
        rows = pa.Table.from_batches([batch_of([offset], timestamp_ms=time_ms)], TOPIC_FILE_SCHEMA)
        added = rows.append_column("added", pa.array([FAR], pa.timestamp("us", tz="UTC")))
        path, sink = f"t/partition=0/{offset}.parquet", io.BytesIO()
        pq.write_table(added, sink, use_deprecated_int96_timestamps=True)
        store.put_durable(path, sink.getvalue())
        files.append(
            FileEntry(
                path=path,
                action_path=f"partition=0/{offset}.parquet",
                partition=0,
                size=len(sink.getvalue()),
                rows=1,
                min_offset=offset,
                max_offset=offset,
            )
        )
    rewritten = rewrite_files(
        store,
        FileReader(store),
        "t",
        files,
        attempt="a" * 22,
        log_start_offset=0,
        file_bytes=None,
        columns=["added"],
    )
    (made,) = rewritten.files
    found = pq.read_table(pa.BufferReader(store.read(made.path)))
    microseconds = [time_ms * 1000] * 2
    assert found.column("added").cast(pa.timestamp("us")).cast(pa.int64()).to_pylist() == (
        microseconds
    )
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == microseconds
    assert made.max_timestamp_ms == time_ms
