"""The scenarios of Spark's own tests of its Kafka source, run on both: Spark's on Apache Kafka, ours on our broker.

docs/internals/proof.md lists the scenarios. Since queries are expensive, many scenarios share one: each has a source of
its own, whose rows carry the scenario's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from kafka_ds.errors import OptionError
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.options.options import parse_options
from tests.apache_kafka import ApacheKafka
from tests.processes import BrokerProcess
from tests.spark.sides import QUERY_LIMIT_S, Given, JoinedJob, SparkSide, expected, named, rows

pytestmark = [
    pytest.mark.jars,
    pytest.mark.usefixtures("launched"),
    pytest.mark.timeout(1200),
]

T0_MS = 1_700_000_000_000
LATER_MS = [T0_MS, T0_MS + 1_000, T0_MS + 2_000]
FAR_MS = 2**62
ANY = pa.schema([])
ZERO_TO_TWO = ("0", "1", "2")


@pytest.fixture(scope="module")
def sides(apache: ApacheKafka, broker: BrokerProcess) -> list[SparkSide]:
    return [
        SparkSide(format="kafka", bootstrap=apache.bootstrap),
        SparkSide(format="kafka_ds", bootstrap=broker.bootstrap),
    ]


@pytest.fixture(scope="module")
def topics(sides: list[SparkSide]) -> Iterator[list[SparkSide]]:
    """Topics that no test changes: plain, with headers, and with times (value n is in partition n % 3)."""
    for side in sides:
        for name in ("plain", "headed", "timed"):
            side.create(name, 3)
        for partition, values in enumerate((range(10), range(10, 20), range(20, 21))):
            side.send("plain", partition, values)
        side.send("headed", 0, [1])
        side.send("headed", 1, [2], headers=[("a", b"b"), ("c", b"d")])
        side.send("headed", 2, [3], headers=[("e", b"f"), ("e", b"g")])
        for at, time_ms in enumerate(LATER_MS):
            for partition in range(3):
                values = (n for n in range(at * 10, at * 10 + 10) if n % 3 == partition)
                side.send("timed", partition, values, timestamp_ms=time_ms)
    yield sides


@pytest.fixture
def again(request: pytest.FixtureRequest) -> str:
    """The end of this try's names of topics: a second one has no topics of the first."""
    attempt = getattr(request.node, "execution_count", 1)
    return "" if attempt == 1 else str(attempt)


def each(topic: str, *numbers: int) -> dict[str, dict[str, int]]:
    return {topic: dict(zip(ZERO_TO_TWO, numbers, strict=True))}


def at(time: int) -> dict[str, dict[str, int]]:
    return each("timed", *[LATER_MS[time]] * 3)


def of(topic: str, **given: Any) -> Given:
    return {"subscribe": topic, **given}


def setting(name: str, value: str) -> Given:
    return of("plain", **{f"kafka.{name}": value})


BATCHES: dict[str, tuple[Given, list[int]]] = {
    "defaults": (of("plain"), [*range(21)]),
    "earliest to latest": (
        of("plain", startingOffsets="EarLiest", endingOffsets="laTest"),
        [*range(21)],
    ),
    "offsets": (
        of("plain", startingOffsets=each("plain", -2, -2, 0), endingOffsets=each("plain", -1, -1, 1)),
        [*range(21)],
    ),
    # Of which a name need hold no more than a match.
    "by pattern": ({"subscribePattern": "^pla.|^headed$"}, [*range(21), 1, 2, 3]),
    "assigned": ({"assign": {"plain": [1, 2]}}, [*range(10, 21)]),
    "from time to time": (
        of("timed", startingOffsetsByTimestamp=at(1), endingOffsetsByTimestamp=at(2)),
        [*range(10, 20)],
    ),
    "from time to offset": (
        of("timed", startingOffsetsByTimestamp=at(0), endingOffsets=each("timed", -1, -1, 1)),
        [*(n for n in range(30) if n % 3 < 2), 2],
    ),
    "from offset to time": (
        of("timed", startingOffsets=each("timed", -2, -2, 0), endingOffsetsByTimestamp=at(2)),
        [*range(20)],
    ),
    "from a time": (of("timed", startingOffsetsByTimestamp=at(1)), [*range(10, 30)]),
    "to a time": (of("timed", endingOffsetsByTimestamp=at(2)), [*range(20)]),
    "one time for all": (
        of("timed", startingTimestamp=LATER_MS[1], endingTimestamp=LATER_MS[2]),
        [*range(10, 20)],
    ),
    "which time wins": (
        of("timed", startingTimestamp=LATER_MS[2], startingOffsetsByTimestamp=at(1), startingOffsets="earliest"),
        [*range(20, 30)],
    ),
    "times before offsets": (
        of("timed", startingOffsetsByTimestamp=at(1), startingOffsets="earliest"),
        [*range(10, 30)],
    ),
    "to a time that is not": (
        of("timed", endingOffsetsByTimestamp=each("timed", LATER_MS[1], LATER_MS[1], FAR_MS)),
        [*range(10), *(n for n in range(10, 30) if n % 3 == 2)],
    ),
    "cut into many": (of("plain", minPartitions="6"), [*range(21)]),
}  # fmt: skip


@pytest.mark.slow
def test_batches_bring_the_same_rows(spark: SparkSession, topics: list[SparkSide]) -> None:
    wanted = expected({name: values for name, (_, values) in BATCHES.items()})
    for side in topics:
        frame = named(spark, {name: given for name, (given, _) in BATCHES.items()}, side.read)
        assert rows(frame) == wanted, side
        headed = side.read(spark, {"subscribe": "headed", "includeHeaders": "true"})
        found = {bytes(row["value"]): row["headers"] for row in headed.collect()}
        assert found[b"1"] is None
        assert [[(h["key"], bytes(h["value"])) for h in found[n]] for n in (b"2", b"3")] == [
            [("a", b"b"), ("c", b"d")],
            [("e", b"f"), ("e", b"g")],
        ]
        plain = side.read(spark, {"subscribe": "plain", "minPartitions": "6"})
        assert plain.rdd.getNumPartitions() >= 6
        # One frame twice in a query, and two of one topic.
        assert plain.unionAll(plain).count() == 42


# What both refuse: the options of a batch, and how ours says it.
REFUSED: dict[str, tuple[Given, str]] = {
    "begins at the end": (of("plain", startingOffsets="latest"), "'startingOffsets' cannot be latest"),
    "begins at an end": (
        of("plain", startingOffsets=each("plain", -1, 0, 0)), "'startingOffsets' cannot be latest.*plain-0",
    ),
    "ends at the start": (of("plain", endingOffsets="earliest"), "'endingOffsets' cannot be earliest"),
    "ends at a start": (
        of("plain", endingOffsets=each("plain", 1, -2, 1)), "'endingOffsets' cannot be earliest.*plain-1",
    ),
    "nothing": ({}, "exactly one of the options 'subscribe'"),
    "two ways": (of("plain", subscribePattern="p.*"), "exactly one of"),
    "two other ways": (of("plain", assign={"plain": [0]}), "exactly one of"),
    "no partition": ({"assign": ""}, "'assign' is ''"),
    "no topic": (of(""), "'subscribe'"),
    "no pattern": ({"subscribePattern": ""}, "'subscribePattern' is empty"),
    "other partitions at the end": (
        of("plain", startingOffsets=each("plain", 1, 1, 1), endingOffsets={"plain": {"0": 0, "1": 0}}),
        "name different partitions",
    ),
    "partitions that are not named": (
        of("plain", startingOffsets={"plain": {"0": 0, "1": 0}}), "must name every partition",
    ),
    "times that are not named": (
        of("timed", startingOffsetsByTimestamp={"timed": {"0": T0_MS, "1": T0_MS}}), "must name every partition",
    ),
    "partitions that are not there": (
        of("plain", startingOffsets={"plain": {"0": 0, "1": 0, "2": 0, "3": 0}}), "must name every partition",
    ),
    "times that are not there": (
        of("timed", startingOffsetsByTimestamp={"timed": dict.fromkeys("0123", T0_MS)}), "must name every partition",
    ),
    "begins behind its end": (
        of("plain", startingOffsets=each("plain", 1, 1, 1), endingOffsets=each("plain", 0, 0, 0)),
        "'startingOffsets' lies beyond 'endingOffsets'",
    ),
    "begins behind a time": (
        of("timed", startingOffsets=each("timed", 3, 9, 9), endingOffsetsByTimestamp=at(1)),
        "'startingOffsets' lies beyond the end in timed-1, timed-2",
    ),
    "begins behind the latest": (
        of("plain", startingOffsets=each("plain", 11, 0, 0)), "'startingOffsets' lies beyond the end in plain-0",
    ),
    "no record so young": (
        of("timed", startingOffsetsByTimestamp=each("timed", T0_MS, T0_MS, FAR_MS)),
        "no record at or after.*timed-2",
    ),
    "no level": (setting("isolation.level", "dirty"), "'kafka.isolation.level' is 'dirty'"),
    "parts that are no number": (of("plain", minPartitions="1.0"), "'minPartitions'"),
    "no part at all": (of("plain", minPartitions="0"), "'minPartitions'"),
    "a reset": (setting("auto.offset.reset", "earliest"), "'kafka.auto.offset.reset' is not supported"),
    "commits": (setting("enable.auto.commit", "true"), "'kafka.enable.auto.commit' is not supported"),
    "interceptors": (setting("interceptor.classes", "x"), "'kafka.interceptor.classes' is not supported"),
    "a key's type": (setting("key.deserializer", "x"), "'kafka.key.deserializer' is not supported"),
    "a value's type": (setting("value.deserializer", "x"), "'kafka.value.deserializer' is not supported"),
}  # fmt: skip


# Of a stream, when its frame is made.
STREAMS_REFUSED: dict[str, tuple[Given, str]] = {
    "an end": (of("plain", endingOffsets="latest"), "'endingOffsets' is not valid in a stream"),
    "an end by times": (
        of("timed", endingOffsetsByTimestamp=at(1)), "'endingOffsetsByTimestamp' is not valid in a stream",
    ),
    "waits for more than it takes": (
        of("plain", minOffsetsPerTrigger="20", maxOffsetsPerTrigger="15"),
        r"'minOffsetsPerTrigger' \(20\) is above 'maxOffsetsPerTrigger' \(15\)",
    ),
    **{
        name: REFUSED[name]
        for name in (
            "nothing", "two ways", "two other ways", "no partition", "no topic", "no pattern", "a reset", "commits",
            "interceptors", "a key's type", "a value's type",
        )
    },
}  # fmt: skip


def test_what_a_stream_cannot_mean_is_refused_by_both(
    spark: SparkSession, sides: list[SparkSide]
) -> None:
    accepted = []
    theirs, ours = sides
    for name, (given, said) in STREAMS_REFUSED.items():
        with pytest.raises((OptionError, OptionError), match=said):
            parse_options(ours.options(given), stream=True)
        try:
            theirs.stream(spark, given)
            accepted.append(name)
        except PySparkException:
            pass
    assert accepted == []


# Spark's own source heeds `maxRecordsPerPartition` in a batch only beside `minPartitions`.
CUTS: dict[str, Given] = {
    "at least six": of("plain", minPartitions="6"),
    "nine, seven at most": of("plain", minPartitions="9", maxRecordsPerPartition="7"),
}


def test_ranges_are_cut_at_the_same_offsets(spark: SparkSession, topics: list[SparkSide]) -> None:
    found = []
    for side in topics:
        frames = [
            side.read(spark, given).selectExpr(
                f"'{name}' AS source", "spark_partition_id() AS task", "partition", "offset"
            )
            for name, given in CUTS.items()
        ]
        tasks: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for source, task, *place in reduce(DataFrame.unionAll, frames).collect():
            tasks.setdefault((source, task), []).append(tuple(place))
        found.append(sorted((source, sorted(places)) for (source, _), places in tasks.items()))
    theirs, ours = found
    assert ours == theirs
    assert Counter(name for name, _ in ours) == {"at least six": 7, "nine, seven at most": 9}


def test_a_time_that_no_microsecond_can_hold(
    spark: SparkSession, sides: list[SparkSide], again: str
) -> None:
    """Nanoseconds, by mistake: Spark's own source fails, and ours has a row without a time."""
    topic = f"nanoseconds{again}"
    for side in sides:
        side.create(topic, 1)
        side.send(topic, 0, [1], timestamp_ms=T0_MS * 1_000_000)
        frame = side.read(spark, of(topic))
        if side.format == "kafka":
            with pytest.raises(Exception, match="(?i)overflow|timestamp"):
                frame.collect()
        else:
            assert [(bytes(row["value"]), row["timestamp"]) for row in frame.collect()] == [
                (b"1", None)
            ]


def test_what_a_batch_cannot_mean_is_refused_by_both(
    spark: SparkSession, topics: list[SparkSide]
) -> None:
    accepted = []
    for name, (given, said) in REFUSED.items():
        for side in topics:
            try:
                # What Spark's own says is its matter; ours names the option, planned here without a round of Spark's.
                if side.format == "kafka":
                    with pytest.raises(Exception):  # noqa: B017
                        side.read(spark, given).collect()
                else:
                    options = side.options(given)
                    with pytest.raises((OptionError, OptionError), match=said):
                        KafkaBatchReader(parse_options(options, stream=False), ANY).partitions()
            except pytest.fail.Exception:
                accepted.append((name, side.format))
    assert accepted == []


def test_rows_that_are_gone_are_left_out_or_an_error(
    spark: SparkSession, sides: list[SparkSide], tmp_path: Path, again: str
) -> None:
    """Deleted below where a batch or a stream begins, and between two runs of one frame."""
    topic = f"gone{again}"
    given = {
        "startingOffsets": {topic: {"0": 0}},
        "kafkaConsumer.pollTimeoutMs": "10000",
        "subscribe": topic,
    }
    for side in sides:
        side.create(topic, 1)
        side.send(topic, 0, range(50))
        bound = {"all": of(topic), "the first fifty": of(topic, endingOffsets={topic: {"0": 50}})}
        late = named(spark, bound, side.read)
        assert rows(late) == expected(dict.fromkeys(bound, [*range(50)])), side
        side.delete_records(topic, 0, 30)
        side.send(topic, 0, range(50, 53))
        left = {"all": [*range(30, 53)], "the first fifty": [*range(30, 50)]}
        assert rows(late.select("*")) == expected(left), side
        going_on = {**given, "failOnDataLoss": "false"}
        batch = named(spark, {"batch": going_on}, side.read)
        assert rows(batch) == expected({"batch": left["all"]}), side
        said = (
            rf"30 offsets are not there: {topic}-0 \[0, 30\)" if side.format == "kafka_ds" else None
        )
        with pytest.raises(Exception, match=said):
            side.read(spark, given).collect()
        # The same source twice in one query, which Spark asks for its offsets once.
        job = JoinedJob(spark, side, tmp_path / side.format, {"stream": going_on}, twice=True)
        job.run()
        assert rows(job.rows()) == expected({"stream": 2 * left["all"]}), side
        assert [len(p["sources"]) for p in job.progress] == [1] * len(job.progress), side
        assert sum(p["numInputRows"] for p in job.progress) == 46, side


def starts(topic: str) -> dict[str, Given]:
    """Where a stream can begin, by each way to name a topic once."""
    pattern = f"^{topic[:-1]}[{topic[-1]}]$"
    return {
        "at offsets": {
            "assign": {topic: [0, 1, 2]},
            "startingOffsets": {topic: {"0": -2, "1": -1, "2": 1}},
        },
        "at the beginning": {"subscribe": topic, "startingOffsets": "earliest"},
        "at the end": {"subscribePattern": pattern, "failOnDataLoss": "false"},
        "at times": {
            "subscribe": topic,
            "startingOffsetsByTimestamp": {topic: {"0": LATER_MS[1], "1": LATER_MS[1], "2": T0_MS}},
        },
        "at one time": {
            "subscribePattern": pattern,
            "startingTimestamp": LATER_MS[1],
            "startingOffsetsByTimestampStrategy": "latest",
        },
    }


@pytest.mark.slow
def test_streams_begin_and_go_on_alike(
    spark: SparkSession, sides: list[SparkSide], tmp_path: Path, again: str
) -> None:
    """A stop, rows and partitions that come meanwhile, a topic that goes."""
    begun = f"begun{again}"
    for side in sides:
        side.create(begun, 3)
        side.create(f"{begun}-goes", 1)
        for partition in range(3):
            side.send(begun, partition, [partition, 10 + partition], timestamp_ms=T0_MS)
        for partition in range(2):
            side.send(begun, partition, [20 + partition], timestamp_ms=LATER_MS[1])
        side.send(f"{begun}-goes", 0, ["old"])
        sources = {
            **starts(begun),
            "that goes": {
                "subscribePattern": f"^{begun}-",
                "startingOffsets": "earliest",
                "failOnDataLoss": "false",
            },
        }
        no_match = {"subscribe": begun, "startingTimestamp": LATER_MS[1]}
        with pytest.raises(StreamingQueryException):
            JoinedJob(spark, side, tmp_path / f"{side.format}-no-match", {"no": no_match}).run()
        job = JoinedJob(spark, side, tmp_path / side.format, sources)
        job.run()
        first: dict[str, list[object]] = {
            "at offsets": [0, 10, 20, 12],
            "at the beginning": [0, 10, 20, 1, 11, 21, 2, 12],
            "at times": [20, 21, 2, 12],
            "at one time": [20, 21],
            "that goes": ["old"],
        }
        assert rows(job.rows()) == expected(first), side
        side.grow(begun, 4)
        for partition in range(4):
            side.send(begun, partition, [30 + partition], timestamp_ms=LATER_MS[2])
        side.delete(f"{begun}-goes")
        side.create(f"{begun}-comes", 1)
        side.send(f"{begun}-comes", 0, ["new"])
        job.run()
        new = [30, 31, 32, 33]
        then = {name: [*first.get(name, []), *new] for name in sources if name != "that goes"}
        then["at offsets"].remove(33)
        assert rows(job.rows()) == expected({**then, "that goes": ["old", "new"]}), side
        # What is not there any more leaves no offset that is empty, from which nothing could go on.
        assert all(end for batch in job.ends() for end in batch), side


@pytest.mark.slow
def test_limits_cut_streams_alike(
    spark: SparkSession, sides: list[SparkSide], tmp_path: Path, again: str
) -> None:
    """In proportion over partitions, through transactions that leave no rows, up to one that is open."""
    plain, transacted = f"limited{again}", f"transacted{again}"
    found: dict[str, Any] = {}
    for side in sides:
        side.create(plain, 3)
        for partition, count in enumerate((30, 5, 1)):
            side.send(plain, partition, (f"{partition}-{n}" for n in range(count)))
        side.create(transacted, 1)
        producer = side.transactional(f"{transacted}-{side.format}")
        for values, ends in (
            (range(3), producer.commit_transaction),
            (range(4, 8), producer.abort_transaction),
            (range(9, 10), producer.commit_transaction),
        ):
            producer.begin_transaction()
            side.send(transacted, 0, values, producer=producer)
            ends(QUERY_LIMIT_S)
        producer.begin_transaction()
        side.send(transacted, 0, [11], producer=producer)
        few = {"startingOffsets": "earliest", "kafkaConsumer.pollTimeoutMs": "5000"}
        three = of(transacted, maxOffsetsPerTrigger="3", **few)
        sources = {
            "in proportion": of(plain, maxOffsetsPerTrigger="10", **few),
            "committed": {**three, "kafka.isolation.level": "read_committed"},
            "uncommitted": {**three, "kafka.isolation.level": "read_uncommitted"},
        }
        job = JoinedJob(spark, side, tmp_path / side.format, sources)
        job.run()
        limited = [f"{p}-{n}" for p, count in enumerate((30, 5, 1)) for n in range(count)]
        wanted = {
            "in proportion": limited,
            "committed": [0, 1, 2, 9],
            "uncommitted": [0, 1, 2, 4, 5, 6, 7, 9, 11],
        }
        assert rows(job.rows()) == expected(wanted), side
        lags = [
            [
                kafka_ds.offsets_behind_latest(source) if side.format == "kafka_ds" else source["metrics"]
                for source in progress["sources"]
            ]
            for progress in job.progress
        ]  # fmt: skip
        found[side.format] = (job.ends(), lags)
        producer.commit_transaction(QUERY_LIMIT_S)
        side.send(plain, 1, range(40))
        # All at once, whatever the limits say.
        job.run(once=True)
        assert [p["numInputRows"] for p in job.progress if p["numInputRows"]] == [41], side
        assert rows(job.rows()) == expected(
            {**wanted, "in proportion": [*limited, *range(40)], "committed": [0, 1, 2, 9, 11]}
        )
    theirs, ours = found["kafka"], found["kafka_ds"]
    assert ours[0] == theirs[0]
    names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
    for their_lags, our_lags in zip(theirs[1], ours[1], strict=True):
        for their_lag, our_lag in zip(their_lags, our_lags, strict=True):
            # Spark rounds the mean to a tenth.
            assert [float(their_lag[n]) for n in names] == [round(our_lag[n], 1) for n in names]
