"""A stream by pattern, without Spark, while topics are made, filled, emptied, deleted and made anew under it.

With ``failOnDataLoss`` = false nothing of that may end it, and what is still there when it has come to the end was
planned once, of each topic by its id, also where planned micro-batches are played again by another driver.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kafka_ds.client.cluster import Cluster
from kafka_ds.errors import ConnectionRefused, DataLoss, OptionError
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka_ds.protocol.messages.cluster import (
    MetadataResponseTopic,
)
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
)
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.pinned import pin
from kafka_ds.source.plan.scan_plan import HotRange, ScanTask
from kafka_ds.source.stream import KafkaStreamReader
from tests.fakes.scripted_broker import ScriptedBroker
from tests.model_runs import examples
from tests.requests import build

NAMES = ("t-a", "t-b", "t-c")
STEPS = 40
Planned = tuple[bytes, int, int]


@dataclass(slots=True, kw_only=True)
class FakeLog:
    start: int = 0
    end: int = 0


@dataclass(slots=True, kw_only=True)
class Made:
    """A topic of a name, which bears an id that no other has."""

    topic_id: bytes
    logs: list[FakeLog] = field(default_factory=lambda: [FakeLog()])


class TopicBounds:
    """A broker's topics: bounds alone."""

    def __init__(self) -> None:
        self.there: dict[str, Made] = {}
        self._ids = 0
        # What happens when the next list of topics has been given, and offsets have not been asked for yet.
        self.then: Any = None
        self.broker = ScriptedBroker(self._answer)

    def make(self, name: str) -> Made:
        self._ids += 1
        made = self.there[name] = Made(topic_id=self._ids.to_bytes(16, "big"))
        return made

    def _answer(self, request: Any) -> Any:
        match request:
            case MetadataRequest():
                answer = self._metadata(request)
                then, self.then = self.then, None
                if then is not None:
                    then()
                return answer
            case ListOffsetsRequest():
                return build(
                    ListOffsetsResponse,
                    topics=[
                        {
                            "name": asked.name,
                            "partitions": [self._offset(asked.name, p) for p in asked.partitions],
                        }
                        for asked in request.topics
                    ],
                )
            case DescribeConfigsRequest():
                return DescribeConfigsResponse(results=[])
        raise AssertionError(request)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = self.there if request.topics is None else [t.name or "" for t in request.topics]
        return build(
            MetadataResponse,
            brokers=[{"node_id": 1, "host": "127.0.0.1", "port": self.broker.port}],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        made = self.there.get(name)
        if made is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return MetadataResponseTopic(error_code=code, name=name, partitions=[])
        return build(
            MetadataResponseTopic,
            name=name,
            topic_id=made.topic_id,
            partitions=[
                {
                    "partition_index": n,
                    "leader_id": 1,
                    "leader_epoch": 0,
                    "replica_nodes": [1],
                    "isr_nodes": [1],
                }
                for n in range(len(made.logs))
            ],
        )

    def _offset(self, name: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        number = asked.partition_index
        made = self.there.get(name)
        if made is None or number >= len(made.logs):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ListOffsetsPartitionResponse(partition_index=number, error_code=code)
        log = made.logs[number]
        # No record is at or after any requested timestamp.
        offset = {-1: log.end, -2: log.start, -4: log.start}.get(asked.timestamp, -1)
        return ListOffsetsPartitionResponse(partition_index=number, offset=offset, leader_epoch=0)

    def change(self, lottery: random.Random) -> None:
        """Anything that can happen to topics."""
        name = lottery.choice(NAMES)
        made = self.there.get(name)
        if made is None:
            made = self.make(name)
        log = lottery.choice(made.logs)
        match lottery.randrange(8):
            case 0:
                del self.there[name]
            case 1:
                self.make(name).logs[0].end = lottery.randrange(12)
            case 2:
                made.logs.append(FakeLog())
            case 3:
                log.start = lottery.randint(log.start, log.end)
            case _:
                log.end += lottery.randrange(12)


class SparkStream:
    """What Spark does with a reader: each end is written down before it is planned, and its commit after that."""

    def __init__(self, topics: TopicBounds, **more: str) -> None:
        given = {
            "kafka.bootstrap.servers": f"127.0.0.1:{topics.broker.port}",
            "subscribePattern": "^t-",
            "tiers": "local",
            "failOnDataLoss": "false",
            "fetchOffset.retryIntervalMs": "1",
            "startingOffsets": "earliest",
            **more,
        }
        self._options = parse_options(given, stream=True)
        self._reader = KafkaStreamReader(self._options, pa.schema([]), slots=2)
        self._committed: dict[str, Any] | None = None
        self.planned: list[Planned] = []

    def die(self, *, available_now: bool) -> None:
        """The driver ends, and another one goes on from the checkpoint."""
        self.stop()
        self._reader = KafkaStreamReader(self._options, pa.schema([]), slots=2)
        if available_now:
            self._reader.prepareForTriggerAvailableNow()

    def stop(self) -> None:
        self._reader.stop()

    def name_end(self, *, once: bool) -> dict[str, Any] | None:
        """The end of the next micro-batch, as the checkpoint has it; None where there is nothing to do."""
        reader = self._reader
        start = self._committed or reader.initialOffset()
        limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
        end = reader.latestOffset(start, limit)
        return None if end == self._committed else dict(json.loads(json.dumps(end)))

    def tasks(self, end: dict[str, Any]) -> list[ScanTask]:
        start = self._committed or self._reader.initialOffset()
        return [task for each in self._reader.partitions(start, end) for task in each.value]

    def plan(self, end: dict[str, Any]) -> list[Planned]:
        return [planned for task in self.tasks(end) for planned in offsets(task)]

    def batch(self) -> list[Planned]:
        """The next micro-batch, from its end to its commit."""
        end = self.name_end(once=False)
        planned = [] if end is None else self.plan(end)
        if end is not None:
            self.commit(end, planned)
        return planned

    def commit(self, end: dict[str, Any], planned: list[Planned]) -> None:
        self._committed = end
        self.planned += planned


def offsets(task: ScanTask) -> Iterator[Planned]:
    for piece in task.ranges:
        assert isinstance(piece, HotRange)
        for offset in range(piece.start, piece.end):
            yield task.topic_id, task.partition, offset


@pytest.fixture
def topics() -> Iterator[TopicBounds]:
    there = TopicBounds()
    yield there
    there.broker.close()


@pytest.mark.parametrize("retries", ["0", "3"])
def test_a_topic_that_goes_while_it_is_looked_at_ends_no_stream(
    topics: TopicBounds, retries: str
) -> None:
    """It is in the list of topics, and gone when its offsets are asked for."""
    topics.make("t-a").logs[0].end = 5
    topics.make("t-b").logs[0].end = 7
    stream = SparkStream(topics, **{"fetchOffset.numRetries": retries})
    try:
        topics.then = lambda: topics.there.pop("t-a")
        end = stream.name_end(once=True)
        assert end is not None
        assert len(stream.plan(end)) == 7
    finally:
        stream.stop()


def test_topics_that_go_one_after_the_other_end_no_stream(topics: TopicBounds) -> None:
    """More of them than a failure would be retried."""
    for name in ("t-a", "t-b", "t-c"):
        topics.make(name).logs[0].end = 5
    stream = SparkStream(topics, **{"fetchOffset.numRetries": "0"})

    def go(*names: str) -> None:
        topics.there.pop(names[0])
        if names[1:]:
            # The next list says that the first is gone, and the one after it is what is left to ask for.
            topics.then = lambda: setattr(topics, "then", lambda: go(*names[1:]))

    try:
        topics.then = lambda: go("t-a", "t-b")
        end = stream.name_end(once=True)
        assert end is not None
        assert len(stream.plan(end)) == 5
    finally:
        stream.stop()


def made_anew_while_looked_at(topics: TopicBounds, *, lists: int) -> Made:
    """The first topic is gone when its offsets are asked for, and another one there after some more lists of topics."""

    def again(more: int) -> None:
        if more:
            topics.then = lambda: again(more - 1)
        else:
            topics.make("t-a").logs[0].end = 9

    def go() -> None:
        topics.there.pop("t-a")
        topics.then = lambda: again(lists - 1)

    old = topics.make("t-a")
    old.logs[0].end = 5
    topics.then = go
    return old


# The client asks twice itself before it says that a topic is gone.
@pytest.mark.parametrize("lists", [1, 2])
@pytest.mark.parametrize("retries", ["0", "3"])
def test_a_topic_made_anew_while_it_is_looked_at_is_another_one(
    topics: TopicBounds, retries: str, lists: int
) -> None:
    old = made_anew_while_looked_at(topics, lists=lists)
    stream = SparkStream(topics, **{"fetchOffset.numRetries": retries})
    planned: list[Planned] = []
    try:
        for _ in range(4):
            planned += stream.batch()
    finally:
        stream.stop()
    new = topics.there["t-a"].topic_id
    assert new != old.topic_id
    assert planned == [(new, 0, offset) for offset in range(9)]


@pytest.mark.parametrize("lists", [1, 2])
def test_a_topic_that_was_named_and_is_made_anew_is_lost(topics: TopicBounds, lists: int) -> None:
    made_anew_while_looked_at(topics, lists=lists)
    given = {
        "kafka.bootstrap.servers": f"127.0.0.1:{topics.broker.port}",
        "subscribe": "t-a",
        "tiers": "local",
        "fetchOffset.numRetries": "0",
    }
    with pytest.raises(OptionError, match="deleted and created again just now.*t-a"):
        pin(parse_options(given), Predicate())


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_may_be_meant_is_looked_for_only_for_an_error(
    topics: TopicBounds, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.make("t-a")
    asked: list[object] = []
    plain = Cluster.topics

    def noted(cluster: Cluster, names: Any) -> Any:
        asked.append(names)
        return plain(cluster, names)

    monkeypatch.setattr(Cluster, "topics", noted)
    where = {"kafka.bootstrap.servers": f"127.0.0.1:{topics.broker.port}", "tiers": "local"}
    reader = OffsetReader(parse_options({**where, "subscribe": "t-aa", "failOnDataLoss": fail}))
    try:
        if fail == "true":
            with pytest.raises(OptionError, match="did you mean t-a"):
                reader.topics()
        else:
            assert reader.topics() == {}
    finally:
        reader.close()
    assert asked == [{"t-aa"}, None][: 2 if fail == "true" else 1]


def test_brokers_that_know_no_ids_are_asked_again(topics: TopicBounds) -> None:
    """Nothing tells then that it is another topic."""
    made_anew_while_looked_at(topics, lists=1).topic_id = NO_UUID
    reader = OffsetReader(
        parse_options(
            {
                "kafka.bootstrap.servers": f"127.0.0.1:{topics.broker.port}",
                "subscribe": "t-a",
                "tiers": "local",
                "fetchOffset.retryIntervalMs": "1",
            }
        )
    )
    try:
        found = reader.topics()
        assert reader.bounds(found, reader.partitions(found))["t-a", 0].end == 9
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("anew", "said"), [(True, "topic t-a was deleted and created again"), (False, "t-a-0 is gone")]
)
def test_what_available_now_was_to_read_is_not_there_any_more(
    topics: TopicBounds, anew: bool, said: str
) -> None:
    """Its end was pinned before: whatever a new topic of that name holds is none of it."""
    topics.make("t-a").logs[0].end = 15
    stream = SparkStream(topics, maxOffsetsPerTrigger="5", failOnDataLoss="true")
    try:
        stream.die(available_now=True)
        assert len(stream.batch()) == 5
        del topics.there["t-a"]
        if anew:
            topics.make("t-a").logs[0].end = 15
        with pytest.raises(DataLoss, match=f"{said}.*'failOnDataLoss'"):
            stream.batch()
    finally:
        stream.stop()


@pytest.mark.parametrize(
    "time", [{"startingTimestamp": "5"}, {"startingOffsetsByTimestamp": '{"t-a":{"0":5}}'}]
)
def test_a_stream_begins_at_a_time_that_no_record_has_only_if_told_to(
    topics: TopicBounds, time: dict[str, str]
) -> None:
    topics.make("t-a").logs[0].end = 5
    refused = SparkStream(topics, **time)
    told = SparkStream(topics, startingOffsetsByTimestampStrategy="latest", **time)
    try:
        with pytest.raises(
            OptionError, match="no record at or after the requested timestamp in t-a-0"
        ):
            refused.batch()
        assert told.batch() == []
        topics.there["t-a"].logs[0].end = 7
        assert [offset for _, _, offset in told.batch()] == [5, 6]
    finally:
        refused.stop()
        told.stop()


def test_a_first_micro_batch_is_played_again_though_partitions_were_added(
    topics: TopicBounds,
) -> None:
    """`startingOffsets` cannot name them: the stream has begun, and new ones are read from their beginning."""
    named = {"startingOffsets": '{"t-a":{"0":2}}'}
    made = topics.make("t-a")
    made.logs[0].end = 5
    stream, late = SparkStream(topics, **named), SparkStream(topics, **named)
    try:
        end = stream.name_end(once=False)
        assert end is not None
        made.logs.append(FakeLog(end=3))
        for available_now in (True, False):
            stream.die(available_now=available_now)
            assert [offset for _, _, offset in stream.plan(end)] == [2, 3, 4]
        stream.commit(end, [])
        assert [(number, offset) for _, number, offset in stream.batch()] == [
            (1, 0),
            (1, 1),
            (1, 2),
        ]
        with pytest.raises(OptionError, match="'startingOffsets' must name every partition"):
            late.batch()
    finally:
        stream.stop()
        late.stop()


def test_a_micro_batch_is_cut_as_a_batch_is(topics: TopicBounds) -> None:
    topics.make("t-a").logs[0].end = 100
    stream = SparkStream(topics, minPartitions="4")
    try:
        end = stream.name_end(once=False)
        assert end is not None
        assert len(stream.tasks(end)) == 4
    finally:
        stream.stop()


@pytest.mark.parametrize("seed", range(examples(6)))
def test_what_is_still_there_was_planned_once(topics: TopicBounds, seed: int) -> None:
    lottery = random.Random(seed)
    limit = {"maxOffsetsPerTrigger": "9"} if seed % 2 else {}
    topics.change(lottery)
    stream = SparkStream(topics, **limit)
    try:
        for _ in range(STEPS):
            for _ in range(lottery.randrange(3)):
                topics.change(lottery)
            if lottery.randrange(4) == 0:
                topics.then = lambda: topics.change(lottery)
            end = stream.name_end(once=lottery.randrange(4) == 0)
            if end is None:
                stream.die(available_now=lottery.randrange(2) == 0)
                continue
            planned = stream.plan(end)
            while lottery.randrange(3) == 0:
                topics.change(lottery)
                stream.die(available_now=lottery.randrange(2) == 0)
                planned = stream.plan(end)
            stream.commit(end, planned)
        topics.then = None
        stream.die(available_now=False)
        while (end := stream.name_end(once=False)) is not None:
            stream.commit(end, stream.plan(end))
    finally:
        stream.stop()
    assert len(stream.planned) == len(set(stream.planned))
    there = {
        (made.topic_id, number, offset)
        for made in topics.there.values()
        for number, log in enumerate(made.logs)
        for offset in range(log.start, log.end)
    }
    assert there
    assert there - set(stream.planned) == set()


def test_brokers_that_never_listened_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has waited for them: with `fetchOffset.numRetries` a wrong port would be told after minutes."""
    asked: list[object] = []

    def topics(cluster: Cluster, names: object) -> None:
        asked.append(names)
        raise ConnectionRefused("no broker of option 'kafka.bootstrap.servers' answers")

    monkeypatch.setattr(Cluster, "topics", topics)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    with pytest.raises(ConnectionRefused):
        OffsetReader(parse_options(options, stream=True)).topics()
    assert len(asked) == 1
