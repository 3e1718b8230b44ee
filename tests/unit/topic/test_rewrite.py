"""Rewritten files keep what others have added, unchanged."""

import datetime as dt
import io
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.topic.files.optimize import LevelChoice
from kafka_ds.topic.files.parquet import FileReader, WrittenFile, write_rows
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import data_file
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.demo.flights import flights
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


def entry_of(made: WrittenFile) -> FileEntry:
    return FileEntry(
        path=made.path,
        action_path=made.path.removeprefix("t/"),
        partition=0,
        size=made.size,
        rows=made.rows,
        min_offset=made.min_offset,
        max_offset=made.max_offset,
    )


def test_json_that_is_kept_is_compressed_harder() -> None:
    store = MemoryStore()
    values = [each.value for each in islice(flights(), 4_000)]

    def file(letter: str, level: int) -> WrittenFile:
        rows = batch_of(range(len(values)), value=b"")
        at = rows.schema.get_field_index("value")
        made = write_rows(
            store,
            f"t/{data_file(0, 0, 22 * letter)}",
            [rows.set_column(at, "value", pa.array(values, pa.binary()))],
            level=level,
        )
        assert made is not None
        return made

    low, high = file("a", 1), file("b", 9)
    assert high.size < 0.9 * low.size
    sizes = []
    for letter, days in (("c", 0.0), ("d", 365.0)):
        rewritten = rewrite_files(
            store,
            FileReader(store),
            "t",
            [entry_of(low)],
            attempt=22 * letter,
            log_start_offset=0,
            file_bytes=None,
            level=LevelChoice(lowest=1, highest=9, days_kept=days),
        )
        sizes += [each.size for each in rewritten.files]
    assert sizes == [low.size, high.size]
