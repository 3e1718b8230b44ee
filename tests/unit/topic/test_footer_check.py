"""Footers of others' Parquet files: what would end the process in pyarrow is refused, and nothing that is right."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ds.topic.files.footer_check import Contradiction, check
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile
from kafka_ds.topic.files.thrift import ThriftReader
from tests.fakes.store import MemoryStore

TABLE = pa.table(
    {
        "offset": pa.array([1, 2], pa.int64()),
        "flag": [True, None],
        "headers": [[{"key": "a", "value": b"b"}], None],
        "id": pa.array([b"1234", b"5678"], pa.binary(4)),
        "rate": pa.array([0.5, 1.5], pa.float32()),
    }
)


def file(**options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(TABLE, out, **options)
    return out.getvalue()


def footer_of(data: bytes) -> tuple[pq.FileMetaData, bytes]:
    metadata = pq.read_metadata(io.BytesIO(data))
    return metadata, data[-8 - metadata.serialized_size : -8]


@pytest.mark.parametrize("options", [{}, {"row_group_size": 1}, {"write_statistics": False}])
def test_what_is_right_passes(options: dict[str, object]) -> None:
    check(*footer_of(file(**options)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({1: 6}, "type 6"),
        ({1: 70}, "type 70"),
        ({12: {6: b"1234567"}}, "too short"),
        ({12: {1: 5}}, "field 1 is no bytes"),
        ({16: {3: [1]}}, "1 counts of levels"),
        ({16: {2: [1, 2]}}, "2 counts of levels"),
        ({16: {1: 7}}, "no bytes"),
    ],
)
def test_a_contradiction_is_told(
    monkeypatch: pytest.MonkeyPatch, changes: dict[int, object], why: str
) -> None:
    metadata, footer = footer_of(file())
    read = ThriftReader.struct

    def changed(self: ThriftReader, depth: int = 0) -> dict[int, object]:
        fields = read(self, depth)
        if depth == 0:
            fields[4][0][1][0][3] |= changes
        return fields

    monkeypatch.setattr(ThriftReader, "struct", changed)
    with pytest.raises(Contradiction, match=why):
        check(metadata, footer)


def test_bytes_may_be_wrong_or_missing() -> None:
    metadata, footer = footer_of(file())
    for at in range(0, len(footer), 17):
        for changed in (footer[:at], footer[:at] + b"\xff" + footer[at + 1 :]):
            try:
                check(metadata, changed)
            except Contradiction:
                continue


def test_the_file_is_named() -> None:
    store = MemoryStore()
    data = file()
    # The type of the first column's chunk: INT64 (2) becomes BYTE_ARRAY (6), each written as twice that.
    found = []
    for at in [i for i in range(len(data) - 8) if data[i : i + 2] == b"\x15\x04"]:
        store.objects["t/f.parquet"] = data[: at + 1] + b"\x0c" + data[at + 2 :]
        try:
            FileReader(store).footer("t/f.parquet")
        except UnreadableFile as error:
            found.append(str(error))
    assert any(each.startswith("t/f.parquet: column offset of row group 0") for each in found)
