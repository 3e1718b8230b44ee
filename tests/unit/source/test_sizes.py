"""A stream's limit of bytes: how large offsets are, how far the limit goes, and what a reader asks for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.samples import LOOKS_MAX, UNDER_WAY_MAX, UNKNOWN_BYTES, Samples
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka_ds.protocol.messages.data import (
    FetchPartition,
    FetchPartitionData,
)
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
)
from kafka_ds.records.batch import Record, build_batch, empty_batch, read_header
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.leader_epochs import Bounds
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import LakeFile, LakeView
from kafka_ds.source.plan.sizes import PRECISION, OffsetSizes, limited_by_bytes
from kafka_ds.source.stream import KafkaStreamReader
from kafka_ds.source.stream_offset import Position, StreamOffset, limited, waiting
from tests.fakes.scripted_broker import TOPIC_ID, ScriptedBroker
from tests.requests import build
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch

PARTITIONS = 3
NOWHERE = ("", 9)


# -- the rule -----------------------------------------------------------------------------------


def at(offsets: dict[int, int]) -> StreamOffset:
    positions = {("t", p): Position(offset=n, epoch=0) for p, n in offsets.items()}
    return StreamOffset(topic_ids={"t": TOPIC_ID}, positions=positions)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int, OffsetSizes]:
    """Where a stream is in a partition, where that ends, and what lies between: files, holes, a log."""
    start = draw(st.integers(0, 60))
    files, end = [], draw(st.integers(0, 60))
    begin = end
    for rows, hole in draw(st.lists(st.tuples(st.integers(1, 25), st.integers(0, 5)), max_size=4)):
        size_bytes = draw(st.integers(1, 3000))
        files.append(
            LakeFile(
                path=f"{end}", size_bytes=size_bytes, first_offset=end, last_offset=end + rows - 1
            )
        )
        end += rows + hole
    lake = LakeView(version=1, start=begin, end=end, files=tuple(files)) if files else None
    hot = draw(st.floats(0, 200))
    return start, draw(st.integers(start, 180)), OffsetSizes(lake=lake, hot_offset_bytes=hot)


@given(st.lists(partitions(), min_size=1, max_size=4), st.integers(1, 6_000))
def test_a_limit_of_bytes_is_kept_and_nothing_stands_still(
    drawn: list[tuple[int, int, OffsetSizes]], bytes_max: int
) -> None:
    start = at({p: begin for p, (begin, _, _) in enumerate(drawn)})
    latest = at({p: end for p, (_, end, _) in enumerate(drawn)})
    stored = {("t", p): each for p, (_, _, each) in enumerate(drawn)}
    total = sum(end - begin for begin, end, _ in drawn)

    def size_bytes(end: StreamOffset) -> int:
        spans = waiting(start, end, {})
        return sum(stored[tp].size_bytes(*spans[tp]) for tp in spans)

    chosen = limited_by_bytes(start, latest, bytes_max, {}, stored)
    for tp, end in chosen.positions.items():
        begin, last = start.positions[tp].offset, latest.positions[tp].offset
        assert begin <= end.offset <= last
        assert end.offset > begin or begin == last
    least = limited(start, latest, 1, {})
    assert size_bytes(chosen) <= bytes_max or chosen == least
    if size_bytes(latest) <= bytes_max:
        assert chosen == latest
    else:
        # Not much less than what the limit lets through: some number of offsets, in the same proportions.
        found = [n for n in range(1, total + 1) if limited(start, latest, n, {}) == chosen]
        assert any(
            size_bytes(limited(start, latest, n + 2 + n // PRECISION, {})) > bytes_max
            for n in found
        )


def test_files_that_lie_far_behind_the_limit_are_not_looked_at() -> None:
    seen: list[tuple[int, int]] = []

    def find(start: int, end: int) -> Iterator[LakeFile]:
        seen.append((start, end))
        for first in range(start - start % 1000, end, 1000):
            yield LakeFile(
                path=str(first), size_bytes=10_000, first_offset=first, last_offset=first + 999
            )

    lake = LakeView(version=1, start=0, end=10**9, find=find)
    stored = {("t", 0): OffsetSizes(lake=lake)}
    chosen = limited_by_bytes(at({0: 500}), at({0: 10**9}), 100_000, {}, stored)
    assert 9_800 <= chosen.positions["t", 0].offset - 500 <= 10_000
    assert max(end for _, end in seen) < 20_000


def test_what_lies_before_and_behind_a_table_is_the_logs() -> None:
    files = (LakeFile(path="f", size_bytes=1000, first_offset=10, last_offset=19),)
    stored = OffsetSizes(
        lake=LakeView(version=1, start=10, end=20, files=files), hot_offset_bytes=2.5
    )
    assert [stored.size_bytes(5, end) for end in (5, 7, 10, 11, 20, 24)] == [
        0,
        5,
        13,
        113,
        1013,
        1023,
    ]
    assert stored.size_bytes(20, 24) == 10


# -- a look at leaders --------------------------------------------------------------------------


def batch(first: int, value: bytes, count: int = 1, **more: Any) -> bytes:
    records = [Record(first + n, 1000, None, value) for n in range(count)]
    return bytes(build_batch(records, base_offset=first, leader_epoch=0, **more))


def marker(offset: int) -> bytes:
    return batch(offset, bytes(6), is_control=True, is_transactional=True, producer_id=1)


class SizedBroker:
    """One broker with a log a partition, in batches of ten records of one size each, unless they are given."""

    def __init__(self) -> None:
        self.topics = {"t": TOPIC_ID}
        # The topic, and the port, of which the next answer says that it is led there.
        self.elsewhere = NOWHERE
        self.logs: dict[int, list[bytes]] = {}
        self.sizes = dict.fromkeys(range(PARTITIONS), 100)
        self.ends = dict.fromkeys(range(PARTITIONS), 1000)
        self.error = ErrorCode.NONE
        self.broker = ScriptedBroker(self._answer)

    def _answer(self, request: Any) -> Any:
        match request:
            case MetadataRequest():
                return self._metadata(request)
            case ListOffsetsRequest():
                asked = request.topics[0].partitions
                answers = [
                    ListOffsetsPartitionResponse(
                        partition_index=p.partition_index,
                        offset=self.ends[p.partition_index] if p.timestamp == -1 else 0,
                        leader_epoch=0,
                    )
                    for p in asked
                ]
                return build(ListOffsetsResponse, topics=[{"name": "t", "partitions": answers}])
        assert isinstance(request, FetchRequest)
        (wanted,) = request.topics[0].partitions
        data = FetchPartitionData(
            partition_index=wanted.partition,
            error_code=self.error,
            high_watermark=self.ends[wanted.partition],
            records=b"" if self.error else self._read(wanted),
        )
        topic_id = request.topics[0].topic_id
        return build(FetchResponse, topic="", topic_id=topic_id, partitions=[data])

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        (away, port), self.elsewhere = self.elsewhere, NOWHERE
        asked = self.topics if request.topics is None else [each.name for each in request.topics]
        return build(
            MetadataResponse,
            brokers=[
                {"node_id": 1, "host": "127.0.0.1", "port": self.broker.port},
                {"node_id": 2, "host": "127.0.0.1", "port": port},
            ],
            topics=[
                {
                    "name": name,
                    "topic_id": self.topics[name],
                    "partitions": [
                        {
                            "partition_index": p,
                            "leader_id": 2 if name == away else 1,
                            "leader_epoch": 0,
                            "replica_nodes": [1],
                            "isr_nodes": [1],
                        }
                        for p in self.ends
                    ],
                }
                for name in asked
                if name in self.topics
            ],
        )

    def _read(self, wanted: FetchPartition) -> bytes:
        log = self.logs.get(wanted.partition)
        if log is None:
            value = bytes(self.sizes.get(wanted.partition, 100))
            return batch(wanted.fetch_offset - wanted.fetch_offset % 10, value, 10)
        left = [each for each in log if read_header(each).next_offset > wanted.fetch_offset]
        return b"".join(left)[: max(wanted.partition_max_bytes, len(left[0]) if left else 0)]

    def fetched(self) -> list[tuple[int, int]]:
        """The partitions and places that were looked at since the last call."""
        asked = [r.topics[0].partitions[0] for r in self.broker.seen if isinstance(r, FetchRequest)]
        self.broker.seen.clear()
        return sorted((each.partition, each.fetch_offset) for each in asked)

    def options(self, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": f"127.0.0.1:{self.broker.port}", "subscribe": "t",
            "startingOffsets": "earliest", "kafka.retry.backoff.ms": "1", **more,
        }  # fmt: skip


@pytest.fixture
def sized() -> Iterator[SizedBroker]:
    there = SizedBroker()
    yield there
    there.broker.close()


def test_one_batch_tells_how_large_offsets_are(sized: SizedBroker) -> None:
    sized.ends = dict.fromkeys(range(2 * UNDER_WAY_MAX + 1), 1000)
    sized.sizes = {p: 10 * p for p in sized.ends}
    samples = Samples()
    with Cluster(parse_options(sized.options()).client) as cluster:

        def look(samples: Samples, places: dict[int, int]) -> dict[int, float]:
            seen = samples.look(cluster, {("t", p): place for p, place in places.items()})
            assert all(sample.hole[0] == sample.hole[1] for sample in seen.values())
            return {p: sample.offset_bytes for (_, p), sample in seen.items()}

        found = look(samples, dict.fromkeys(sized.ends, 17))
        assert all(10 * p < found[p] < 10 * p + 25 for p in sized.ends)
        assert len(sized.fetched()) == len(sized.ends)
        # What is known is not asked for again; what cannot be told is as it was, or as others are.
        sized.error = ErrorCode.OFFSET_OUT_OF_RANGE
        sized.ends[99] = 1000
        assert look(samples, {2: 17, 3: 21, 4: 17}) == {p: found[p] for p in (2, 3, 4)}
        assert sized.fetched() == [(3, 21)]
        cluster.topics(["t"])
        assert look(samples, {2: 17, 99: 0}) == {2: found[2], 99: found[2]}
        # Of nobody anything is known: the limit is not off, and the place is looked at again.
        sized.fetched()
        nothing = Samples()
        for _ in range(2):
            assert look(nothing, {99: 0}) == {99: UNKNOWN_BYTES}
            assert sized.fetched() == [(99, 0)] * LOOKS_MAX
        sized.error = ErrorCode.NONE
        assert 100 < look(nothing, {99: 0})[99] < 125


LARGE = batch(0, bytes(100_000))


@pytest.mark.parametrize(
    ("log", "offset_bytes", "records_at"),
    [
        # A marker says nothing of records: the batch behind it does, of which the header came.
        ([marker(0), batch(1, bytes(100_000))], len(LARGE), 1),
        # Nor do batches without records, of which no more came than themselves.
        ([empty_batch(0, 9, 0) + bytes(20_000), batch(10, bytes(100_000))], len(LARGE), 10),
        ([marker(n) for n in range(300)] + [batch(300, bytes(100_000))], len(LARGE), 300),
        # A hole before the first batch takes nothing, and tells nothing of what lies behind it.
        ([batch(10**9, bytes(100_000))], len(LARGE), 10**9),
        # Holes and markers between batches are of what offsets take.
        ([batch(10 * n, b"") for n in range(20)], 20 * len(batch(0, b"")) / 191, 0),
        ([LARGE[:-1]], len(LARGE), 0),
        # Nothing but markers is left.
        ([marker(0), marker(1)], UNKNOWN_BYTES, 2),
    ],
)
def test_records_alone_tell_how_large_they_are(
    sized: SizedBroker, log: list[bytes], offset_bytes: float, records_at: int
) -> None:
    sized.logs[0] = log
    sized.ends[0] = read_header(log[-1]).next_offset
    samples = Samples()
    with Cluster(parse_options(sized.options()).client) as cluster:
        for _ in range(2):
            sample = samples.look(cluster, {("t", 0): 0})["t", 0]
            assert sample.offset_bytes == pytest.approx(offset_bytes)
            assert sample.hole == (0, records_at)
            assert len(sized.fetched()) <= 2
        assert sized.fetched() == []


def test_a_topic_that_is_gone_is_not_asked_about(sized: SizedBroker) -> None:
    reader = OffsetReader(parse_options(sized.options(), stream=True))
    bounds = {("t", 0): Bounds(topic_id=TOPIC_ID, start=0, end=1000, leader_epoch=0)}
    spans = {("b", 0): (0, 50), ("t", 0): (0, 1000)}
    try:
        stored = reader.stored(spans, bounds)
        assert stored["b", 0] == OffsetSizes()
        assert 100 < stored["t", 0].hot_offset_bytes < 125
        # Also where it went after it was looked at last.
        later = reader.stored(
            dict.fromkeys(spans, (500, 600)), {**bounds, ("b", 0): bounds["t", 0]}
        )
        assert later["b", 0].hot_offset_bytes == later["t", 0].hot_offset_bytes
    finally:
        reader.close()


def test_a_leader_that_is_lost_takes_no_other_topic_with_it(sized: SizedBroker) -> None:
    sized.topics = {"t": TOPIC_ID, "u": bytes(range(2, 18))}
    with socket.socket() as nobody, Cluster(parse_options(sized.options()).client) as cluster:
        nobody.bind(("127.0.0.1", 0))
        sized.elsewhere = ("u", nobody.getsockname()[1])
        cluster.topics(["t", "u"])
        found = Samples().look(cluster, {("t", 0): 17, ("u", 0): 17})
        assert all(100 < each.offset_bytes < 125 for each in found.values())
        assert sized.fetched() == [(0, 17), (0, 17)]


# -- in a stream --------------------------------------------------------------------------------


class MicroBatches:
    """A reader whose micro-batches are asked for one after the other, as Spark does."""

    def __init__(self, options: dict[str, str]) -> None:
        self.reader = KafkaStreamReader(parse_options(options, stream=True), pa.schema([]))
        self.at: dict[str, Any] = {}

    def step(self, limit: ReadLimit | None = None) -> list[tuple[int, int, int]]:
        """What the next micro-batch reads: partition, first offset, end."""
        start = self.at or self.reader.initialOffset()
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        self.at = json.loads(json.dumps(end))
        return self.planned(start, self.at)

    def planned(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
        tasks = [task for each in self.reader.partitions(start, end) for task in each.value]
        found: list[tuple[int, int, int]] = []
        for task in tasks:
            for piece in task.ranges:
                spans = (
                    [(each.offsets.start, each.offsets.end) for each in piece.files]
                    if hasattr(piece, "files")
                    else [(piece.start, piece.end)]
                )
                found += [(task.partition, first, last) for first, last in spans]
        return sorted(found)


@pytest.fixture
def started() -> Iterator[Callable[[dict[str, str]], MicroBatches]]:
    all_of_them: list[MicroBatches] = []

    def start(options: dict[str, str]) -> MicroBatches:
        all_of_them.append(MicroBatches(options))
        return all_of_them[-1]

    yield start
    for each in all_of_them:
        each.reader.stop()


Started = Callable[[dict[str, str]], MicroBatches]


def test_hot_offsets_are_limited_by_what_their_batches_take(
    sized: SizedBroker, started: Started
) -> None:
    sized.sizes = {0: 100, 1: 1000, 2: 100}
    sized.ends = {0: 1000, 1: 500, 2: 0}
    given = sized.options(tiers="local", maxBytesPerTrigger="100k")
    stream = started(given)
    batches = [stream.step()]
    assert sized.fetched() == [(0, 0), (1, 0)]
    # Two of three offsets are of some 110 bytes, one of some 1010.
    ((_, _, small), (_, _, large)) = batches[0]
    assert small == pytest.approx(2 * large, abs=2)
    assert 95_000 < 110 * small + 1010 * large < 105_000
    before = stream.at
    while batches[-1]:
        batches.append(stream.step())
    for partition, end in ((0, 1000), (1, 500)):
        spans = [(a, b) for batch in batches for p, a, b in batch if p == partition]
        assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
        assert spans[-1][1] == end
    assert len(batches) == 8
    # What was planned is planned again as it was, also where the limit is another by then.
    for again in (given, {**given, "maxBytesPerTrigger": "1"}, sized.options(tiers="local")):
        assert started(again).planned(before, stream.at) == sorted(
            (p, b, sized.ends[p]) for p, _, b in batches[0]
        )


def test_a_limit_goes_through_a_hole_and_no_farther_behind_it(
    sized: SizedBroker, started: Started
) -> None:
    behind = [batch(10**9 + n, bytes(1000)) for n in range(100)]
    sized.logs[0], sized.ends = behind, {0: 10**9 + 100}
    stream = started(sized.options(tiers="local", maxBytesPerTrigger=str(10 * len(behind[0]))))
    steps = [(start, end) for ((_, start, end),) in iter(stream.step, [])]
    assert steps[0][1] > 9 * 10**8
    assert all(end - max(start, 10**9) <= 10 for start, end in steps)
    assert len(steps) < 20 and steps[-1][1] == 10**9 + 100


def test_records_larger_than_the_limit_come_one_by_one(
    sized: SizedBroker, started: Started
) -> None:
    sized.ends = {0: 3, 1: 2, 2: 0}
    stream = started(sized.options(tiers="local", maxBytesPerTrigger="1"))
    steps = [stream.step() for _ in range(4)]
    assert steps == [[(0, 0, 1), (1, 0, 1)], [(0, 1, 2), (1, 1, 2)], [(0, 2, 3)], []]


def test_of_two_limits_the_smaller_wins(sized: SizedBroker, started: Started) -> None:
    sized.ends = {0: 1000}

    def first(limit: ReadLimit | None = None, **limits: str) -> int:
        ((_, _, end),) = started(sized.options(tiers="local", **limits)).step(limit)
        return end

    by_bytes = first(maxBytesPerTrigger="11k")
    assert 90 < by_bytes < 110
    assert first(maxBytesPerTrigger="11k", maxOffsetsPerTrigger="500") == by_bytes
    assert first(maxBytesPerTrigger="11k", maxOffsetsPerTrigger="50") == 50
    assert first(maxBytesPerTrigger="11k", minOffsetsPerTrigger="900") == by_bytes
    sized.fetched()
    # What Trigger.Once asks for, without a look at sizes.
    assert first(ReadAllAvailable(), maxBytesPerTrigger="11k") == 1000
    assert sized.fetched() == []


def test_a_stream_goes_by_files_first_and_by_the_log_behind_them(
    sized: SizedBroker, started: Started, tmp_path: Path
) -> None:
    """With AvailableNow, where the table is opened once a micro-batch, and the log's place is looked at once."""
    lake = SourceLake(tmp_path, topic_id=TOPIC_ID)
    for first in range(0, 600, 100):
        rows = [LakeRow(offset=n, value=bytes(50)) for n in range(first, first + 100)]
        lake.add(0, [record_batch(rows)])
    (entry, *_) = lake.table.read().index.files(0)
    sized.ends = {0: 1000}
    given = sized.options(lake=lake.uri, maxBytesPerTrigger=str(2 * entry.size + 100))
    stream = started(given)
    stream.reader.prepareForTriggerAvailableNow()
    sized.ends = {0: 1200}
    ends = []
    while batch := stream.step():
        ends.append(batch[-1][2])
    assert 190 <= ends[0] <= 205
    assert ends[-1] == 1000
    rows = 2 * entry.size // 110
    cold = [end for end in ends if end <= 600]
    assert len(cold) in (3, 4)
    assert all(b - a < rows + 10 for a, b in zip(ends, ends[1:], strict=False) if a >= 600)
    # The end of the table, and then wherever the stream is.
    assert sized.fetched() == [(0, 600), *((0, end) for end in ends[:-1] if end > 600)]
    assert started({**given, "tiers": "remote"}).step()[-1][2] == pytest.approx(ends[0], abs=5)
    assert sized.fetched() == []
