"""kafka_ds.scan(): the rows of the source, whatever the lake looks like, by Spark's own Delta scan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import kafka_ds
from tests.spark.scan_source import NOBODY, source
from tests.spark.topics import T0_MS, Topic, found, moment
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch

ALL = "key, value, topic, partition, offset, timestamp, timestampType, headers, leader_epoch"
# Header sections as producers wrote them, of which a key is not UTF-8 (or breaks off in the middle of a character).
RAW = [
    b"\x02\x02\xff\x01",
    b"\x04\x06a\xe2\x82\x02v\x04\xc3\x28\x00",
    b"\x02\x08\xf0\x9f\x98b\xc8\x01" + bytes(100),
    b"\x02\x80\x02" + b"\xfe" * 128 + b"\x80\x04" + bytes(range(256)),
    b"\x06\x02a\x01\x02\xff\x02x\x02b\x01",
]


def rows(frame: DataFrame) -> Counter[str]:
    """Every value of every row: times as numbers, since Python cannot hold all that Spark can."""
    names = [f"unix_micros({n})" if n == "timestamp" else n for n in frame.columns]
    return Counter(map(repr, frame.selectExpr(*names).collect()))


def by_delta_alone(frame: DataFrame) -> bool:
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "Python" not in plan and "FileScan parquet" in plan


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> SourceLake:
    """A table that others have changed: rows of all kinds, a log start, erased rows, an INSERT, rewritten files."""
    lake = SourceLake(tmp_path_factory.mktemp("odd"))
    kinds = [
        LakeRow(offset=100),
        LakeRow(offset=101, key=b"", value=None),
        LakeRow(offset=102, timestamp_ms=-1),
        LakeRow(offset=103, timestamp_ms=2**62),
        LakeRow(offset=104, timestamp_ms=-(2**40), headers=(("a", None), ("a", b"\xff"))),
        LakeRow(offset=105, timestamp_ms=253_402_300_800_000, leader_epoch=3),
        *(LakeRow(offset=110 + n, headers_raw=raw) for n, raw in enumerate(RAW)),
    ]
    lake.add(0, [record_batch([LakeRow(offset=n) for n in range(100)])])
    lake.add(0, [record_batch(kinds)], end=120)
    lake.add(1, [record_batch([LakeRow(offset=n, leader_epoch=n % 3) for n in range(50)])], start=0)
    table = Path(lake.uri) / "topics" / "t"
    DeltaTable(table).delete('"offset" IN (7, 41)')
    schema = record_batch([LakeRow(offset=0)]).schema.append(pa.field("partition", pa.int32()))
    # Into a partition that has records, one that has none, and none at all: nobody's records, all three.
    (foreign,) = record_batch([LakeRow(offset=20, value=b"foreign")]).to_pylist()
    inserted = [{**foreign, "partition": number} for number in (0, 7, None)]
    write_deltalake(table, pa.Table.from_pylist(inserted, schema), mode="append")
    lake.set_log_start(0, 10)
    return lake


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        {"columns": ALL},
        pytest.param(
            {
                "startingOffsets": '{"t":{"0":90,"1":7}}',
                "endingOffsets": '{"t":{"0":112,"1":-1}}',
                "where": "leader_epoch IN (0, 2) AND timestamp < TIMESTAMP '2023-11-14 22:13:20.100Z'",
            },
            marks=pytest.mark.slow,
        ),
        # Of what is there then all is wanted, but for others' rows.
        {"asOfVersion": 5},
    ],
    ids=["all", "limits", "before"],
)
def test_any_lake_is_read_as_the_source_reads_it(
    spark: SparkSession, odd: SourceLake, options: dict[str, object]
) -> None:
    given = {**NOBODY, "lake": odd.uri, "includeHeaders": True, **options}
    expected = rows(source(spark, subscribe="t", **given))
    scanned = kafka_ds.scan(spark, "t", **given)
    assert scanned.dtypes == source(spark, subscribe="t", **given).dtypes
    assert rows(scanned) == expected
    assert sum(expected.values()) > 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_topic_on_its_way_is_pinned_and_exact(
    spark: SparkSession, topic: Topic, rounds: int
) -> None:
    """Produce, roll, tier, rewrite files: each scan has the rows of its moment, and filters are exact."""
    chance = random.Random(20261121)
    topic.create()
    moments: list[tuple[DataFrame, list[Any]]] = []
    for _ in range(rounds):
        topic.produce(5500, size=500, headers=True)
        ends = [topic.wait_until_tiered(n, least=topic.closed_end(n)) for n in (0, 1)]
        assert all(0 < end < len(topic.rows) // 2 for end in ends)
        topic.produce(100, headers=True)
        given = topic.options({"includeHeaders": True})
        moments.append((kafka_ds.scan(spark, **given), topic.expected()))
    DeltaTable(topic.broker.lake / "topics" / topic.name).optimize.compact()
    for frame, expected in moments:
        assert found(frame) == expected
    with_hot = moments[-1][0]
    for _ in range(rounds - 1):
        sql, keep = condition(chance, len(topic.rows))
        assert found(with_hot.where(sql)) == topic.expected(keep), sql
    assert not by_delta_alone(with_hot)
    assert by_delta_alone(kafka_ds.scan(spark, topic.name, **topic.options({"tiers": "remote"})))


def condition(chance: random.Random, count: int) -> tuple[str, Callable[[dict[str, Any]], bool]]:
    """Two random conditions joined by AND or OR, in SQL and in Python."""
    offset, young, side = chance.randrange(count // 2), chance.randrange(count), chance.randrange(2)
    points = [chance.randrange(count // 2) for _ in range(5)]

    def number(row: dict[str, Any]) -> int:
        return int(row["offset"]) * 2 + int(row["partition"])

    known: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
        (f"offset >= {offset}", lambda r: r["offset"] >= offset),
        (f"partition = {side}", lambda r: r["partition"] == side),
        (f"timestamp < {moment(T0_MS + young)}", lambda r: number(r) < young),
        (f"offset IN ({', '.join(map(str, points))})", lambda r: r["offset"] in points),
        ("value IS NULL", lambda r: r["value"] is None),
    ]
    (one, first), (other, second) = chance.sample(known, 2)
    if chance.random() < 0.5:
        return f"{one} AND {other}", lambda r: first(r) and second(r)
    return f"{one} OR {other}", lambda r: first(r) or second(r)


def test_the_source_s_rows_are_copied_once_and_can_be_kept(
    spark: SparkSession, odd: SourceLake
) -> None:
    """No projection lies between the source and what asks for its rows, whoever holds on to them meanwhile."""
    frame = source(spark, subscribe="t", **NOBODY, lake=odd.uri)
    for each in (frame, frame.select("offset"), frame.select("partition", "offset")):
        plan = each._jdf.queryExecution().executedPlan().toString()
        assert "BatchScan kafka_ds" in plan and "Project" not in plan
    expected = rows(frame)
    assert rows(frame.orderBy("partition", "offset")) == rows(frame.repartition(3)) == expected
    assert sum(expected.values()) > 100


def test_a_scan_says_what_is_wrong(spark: SparkSession, odd: SourceLake) -> None:
    given = {**NOBODY, "lake": odd.uri}
    with pytest.raises(ValueError, match="given are subscribe and assign"):
        kafka_ds.scan(spark, "t", assign={"t": [0]}, **given)
    with pytest.raises(ValueError, match="option 'asOfVersion'.*from version 0"):
        kafka_ds.scan(spark, "t", asOfVersion=99, **given)
    nothing = kafka_ds.scan(spark, "t", endingOffsets={"t": {"0": 0, "1": 0}}, **given)
    assert (nothing.count(), len(nothing.columns)) == (0, 7)


def test_a_session_without_delta_is_told(
    spark: SparkSession, odd: SourceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Spark says of a format that it does not have: this session has Delta's.
    before = DataFrameReader.format
    monkeypatch.setattr(
        DataFrameReader, "format", lambda self, name: before(self, f"{name}.that.is.not.there")
    )
    with pytest.raises(ValueError, match="needs Delta's jars"):
        kafka_ds.scan(spark, "t", **NOBODY, lake=odd.uri)
