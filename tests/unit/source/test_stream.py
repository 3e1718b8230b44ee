"""Micro-batches without Spark: a planned batch against what the brokers hold when it is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from kafka_ds.errors import DataLoss, OptionError
from kafka_ds.protocol.types import uuid_text
from kafka_ds.source import stream
from kafka_ds.source.filters.where import parse_where
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import HotRange
from kafka_ds.source.stream import KafkaStreamReader
from tests.fakes.scripted_broker import TOPIC_ID
from tests.unit.source.log_broker import OTHER_ID, LogBroker


@pytest.fixture
def log() -> Iterator[LogBroker]:
    there = LogBroker()
    yield there
    there.broker.close()


def test_a_spark_that_does_not_say_where_a_micro_batch_begins_gets_all_there_is(
    log: LogBroker,
) -> None:
    """PySpark 4.1: it asks for the end alone, and says where the last one was when it plans."""

    def spans(reader: KafkaStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
        tasks = [task for each in reader.partitions(start, end) for task in each.value]
        return [(piece.start, piece.end) for task in tasks for piece in task.ranges]

    options = parse_options(log.options(), stream=True)
    first = KafkaStreamReader(options, pa.schema([]))
    again = KafkaStreamReader(options, pa.schema([]))
    try:
        begin = first.initialOffset()
        end = first.latestOffset()
        assert spans(first, begin, end) == [(0, 100)]
        log.end = 110
        later = first.latestOffset()
        assert spans(first, end, later) == [(100, 110)]
        assert first.latestOffset() == later
        # After a restart Spark alone knows that.
        log.end = 120
        last = again.latestOffset()
        assert spans(again, later, last) == [(110, 120)]
        assert again.latestOffset() == last
    finally:
        first.stop()
        again.stop()


@pytest.mark.parametrize(
    "option", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"]
)
def test_limits_need_a_spark_that_says_where_a_micro_batch_begins(
    log: LogBroker, option: str
) -> None:
    options = parse_options(log.options(**{option: "5"}), stream=True)
    stream.check_limits(options)
    with pytest.raises(OptionError, match=f"option '{option}' needs PySpark 4.2 or newer"):
        stream.check_limits(options, has_limits=False)


def test_a_stream_begins_once(log: LogBroker) -> None:
    """Spark asks for the beginning twice, and records come in between: none of them is left out, or taken back."""
    given = log.options(startingOffsets="latest")
    reader = KafkaStreamReader(parse_options(given, stream=True), pa.schema([]))
    try:
        begin = reader.initialOffset()
        log.end = 110
        end = reader.latestOffset(begin, ReadAllAvailable())
        log.end = 120
        ((task,),) = (each.value for each in reader.partitions(reader.initialOffset(), end))
    finally:
        reader.stop()
    (piece,) = task.ranges
    assert (piece.start, piece.end) == (100, 110)


def test_a_batch_is_planned_by_what_was_seen_when_its_end_was_named(log: LogBroker) -> None:
    """Each question is a round trip in every micro-batch; a batch that was named by another is asked about."""

    def asked() -> list[str]:
        names = [type(each).__name__ for each in log.broker.seen]
        log.broker.seen.clear()
        return [name for name in names if name in ("MetadataRequest", "ListOffsetsRequest")]

    reader = KafkaStreamReader(parse_options(log.options(), stream=True), pa.schema([]))
    once = ["MetadataRequest", "ListOffsetsRequest", "ListOffsetsRequest"]
    try:
        begin = reader.initialOffset()
        asked()
        end = reader.latestOffset(begin, ReadAllAvailable())
        assert asked() == once
        planned = [task for each in reader.partitions(begin, end) for task in each.value]
        assert asked() == []
        assert [each.value for each in reader.partitions(begin, end)] == [tuple(planned)]
        assert [task.ranges for task in planned] == [(HotRange(start=0, end=100, leader_epoch=0),)]
        log.topic_id = OTHER_ID
        with pytest.raises(DataLoss, match="topic t was deleted and created again"):
            reader.partitions(at(5), at(50))
        assert asked() == once
    finally:
        reader.stop()


def test_a_first_micro_batch_is_played_again_as_it_was(log: LogBroker) -> None:
    """The driver dies in it: what it begins at is in its end, wherever `latest` is by then."""
    options = parse_options(log.options(startingOffsets="latest"), stream=True)
    first = KafkaStreamReader(options, pa.schema([]))
    log.end = 105
    begin = first.initialOffset()
    log.end = 110
    end = json.loads(json.dumps(first.latestOffset(begin, ReadAllAvailable())))
    first.stop()
    log.end = 120
    second = KafkaStreamReader(options, pa.schema([]))
    try:
        ((task,),) = (each.value for each in second.partitions(second.initialOffset(), end))
        (piece,) = task.ranges
        assert (piece.start, piece.end) == (105, 110)
        # What follows begins at that end, and nothing new is no reason for a micro-batch.
        log.end = 110
        assert second.latestOffset(end, ReadAllAvailable()) == end
        log.end = 130
        later = second.latestOffset(end, ReadAllAvailable())
        ((task,),) = (each.value for each in second.partitions(end, later))
    finally:
        second.stop()
    (piece,) = task.ranges
    assert (piece.start, piece.end) == (110, 130)
    assert "began" not in later


def test_a_first_micro_batch_without_rows_bears_its_beginning_too(log: LogBroker) -> None:
    """Spark writes it down in any case; where it fails, more has come by the time it is played again."""
    options = parse_options(log.options(startingOffsets="latest"), stream=True)
    first = KafkaStreamReader(options, pa.schema([]))
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    first.stop()
    log.end = 120
    second = KafkaStreamReader(options, pa.schema([]))
    try:
        assert second.partitions(second.initialOffset(), end) == []
        log.end = 100
        assert second.latestOffset(end, ReadAllAvailable()) == end
    finally:
        second.stop()


def test_an_end_without_the_streams_topic_is_never_named(log: LogBroker) -> None:
    """Spark would write it down, and the query would fail on it also when `subscribe` names the topic again."""
    reader = KafkaStreamReader(parse_options(log.options(), stream=True), pa.schema([]))
    bare = log.options(failOnDataLoss="false")
    patient = KafkaStreamReader(parse_options(bare, stream=True), pa.schema([]))
    try:
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        log.there = False
        with pytest.raises(DataLoss, match="topic t is gone, or the options do not name it any mo"):
            reader.latestOffset(begin, ReadAllAvailable())
        assert patient.latestOffset(begin, ReadAllAvailable())["topics"] == {}
        log.there, log.end = True, 110
        later = reader.latestOffset(begin, ReadAllAvailable())
        ((task,),) = (each.value for each in reader.partitions(begin, later))
    finally:
        reader.stop()
        patient.stop()
    (piece,) = task.ranges
    assert (piece.start, piece.end) == (100, 110)


def test_available_now_begins_no_later_than_it_ends(log: LogBroker) -> None:
    """Spark has the end pinned before it asks for the beginning, and records come in between."""
    options = parse_options(log.options(startingOffsets="latest"), stream=True)
    reader = KafkaStreamReader(options, pa.schema([]))
    try:
        reader.prepareForTriggerAvailableNow()
        log.end += 5
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
        assert reader.partitions(begin, end) == []
    finally:
        reader.stop()


def test_a_micro_batch_waits_for_enough_but_not_for_ever(
    log: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits below and above at once; the first micro-batch comes at once, also on a machine that was just started."""
    clock = SimpleNamespace(now=1.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(stream, "time", clock)
    given = log.options(minOffsetsPerTrigger="15", maxOffsetsPerTrigger="20", maxTriggerDelay="5s")
    reader = KafkaStreamReader(parse_options(given, stream=True), pa.schema([]))
    limit = reader.getDefaultReadLimit()
    position = reader.initialOffset()

    def comes_to(end: int, after_s: float, limit: ReadLimit = limit) -> int:
        nonlocal position
        log.end = end
        clock.now += after_s
        position = reader.latestOffset(position, limit)
        return int(position["topics"]["t"]["partitions"]["0"]["offset"])

    try:
        assert comes_to(3, 0) == 3
        assert comes_to(17, 1) == 3
        assert comes_to(33, 1) == 23
        assert comes_to(33, 4.9) == 23
        assert comes_to(33, 0.2) == 33
        # What Trigger.Once asks for.
        assert comes_to(133, 0, ReadAllAvailable()) == 133
    finally:
        reader.stop()


def at(offset: int, epoch: int = 0, topic_id: bytes = TOPIC_ID) -> dict[str, Any]:
    """A stream's offset in t-0."""
    partitions = {"0": {"offset": offset, "epoch": epoch}}
    return {"version": 1, "topics": {"t": {"id": uuid_text(topic_id), "partitions": partitions}}}


def test_a_planned_batch_is_read_again_as_it_was(log: LogBroker) -> None:
    (task,) = log.planned(at(5), at(50))
    assert task.topic_id == TOPIC_ID
    assert task.ranges == (HotRange(start=5, end=50, leader_epoch=0),)


def test_a_batch_that_sparks_kafka_source_planned_is_read_as_it_was(log: LogBroker) -> None:
    """Its checkpoint knows neither the topic's id nor a leader epoch; what comes next knows both."""
    log.broker.leader_epoch = 4
    theirs = {"t": {"0": 5}}, {"t": {"0": 50}}
    (task,) = log.planned(*theirs)
    assert (task.topic_id, task.ranges) == (TOPIC_ID, (HotRange(start=5, end=50, leader_epoch=4),))
    (task,) = log.planned(theirs[1], at(100, epoch=4))
    assert task.ranges == (HotRange(start=50, end=100, leader_epoch=4),)


def test_a_planned_batch_reads_no_rows_of_a_topic_created_since(
    log: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    log.topic_id = OTHER_ID
    with pytest.raises(DataLoss, match="topic t was deleted and created again.*'failOnDataLoss'"):
        log.planned(at(5), at(50))
    with caplog.at_level(logging.WARNING, "kafka_ds.source"):
        assert log.planned(at(5), at(50), failOnDataLoss="false") == []
    assert "45 offsets are not there: t-0 [5, 50)" in caplog.text
    # They come once, with the batch that goes over to the new topic.
    (task,) = log.planned(at(50), at(100, topic_id=OTHER_ID), failOnDataLoss="false")
    assert task.ranges == (HotRange(start=0, end=100, leader_epoch=0),)


def test_a_planned_batch_of_a_topic_that_is_gone_is_no_empty_one(
    log: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    log.there = False
    with pytest.raises(DataLoss, match="t-0 is gone"):
        log.planned(at(5), at(50))
    with caplog.at_level(logging.WARNING, "kafka_ds.source"):
        assert log.planned(at(5), at(50), failOnDataLoss="false") == []
    assert "45 offsets are not there: t-0 [5, 50)" in caplog.text


def test_a_log_that_was_cut_below_the_end_of_a_batch_is_seen(log: LogBroker) -> None:
    """An unclean election: what the stream pinned under epoch 3 ends at 40 in the log of the leader of epoch 4."""
    log.broker.leader_epoch = 4
    log.epoch_ends = {3: 40}
    with pytest.raises(
        DataLoss, match="t-0: the records of leader epoch 3 now end at 40, below 50"
    ):
        log.planned(at(5, epoch=3), at(50, epoch=3))
    log.epoch_ends = {3: 50}
    assert log.planned(at(5, epoch=3), at(50, epoch=3))


def test_a_log_that_was_cut_and_has_grown_since_the_last_batch_is_seen(
    log: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """90 to 99 were read under epoch 3, and are others' by now: the new end, under epoch 4, says nothing of them."""
    log.broker.leader_epoch = 4
    log.end = 120
    log.epoch_ends = {3: 90}
    batch = at(100, epoch=3), at(120, epoch=4)
    why = "t-0: the records of leader epoch 3 now end at 90, below 100"
    with pytest.raises(DataLoss, match=why):
        log.planned(*batch)
    with caplog.at_level(logging.WARNING, "kafka_ds.source"):
        (task,) = log.planned(*batch, failOnDataLoss="false")
    assert why in caplog.text
    assert task.ranges == (HotRange(start=100, end=120, leader_epoch=4),)
    # Both ends are of leaders that are gone: each is asked about.
    log.broker.leader_epoch = 5
    log.epoch_ends = {3: 100, 4: 110}
    with pytest.raises(DataLoss, match="leader epoch 4 now end at 110, below 120"):
        log.planned(*batch)
    log.epoch_ends = {3: 100, 4: 120}
    assert log.planned(*batch)


@pytest.mark.parametrize(
    ("first_epoch", "end", "cut"), [(0, 90, (60, 90)), (0, -1, (60, 100)), (-1, 90, (0, 100))]
)
def test_a_leader_cuts_by_epochs_only_where_it_knows_them(
    log: LogBroker, first_epoch: int, end: int, cut: tuple[int, int]
) -> None:
    """One that lost its disk serves rows out of the lake whose epochs it does not know."""
    log.broker.leader_epoch = 2
    log.first_epoch = first_epoch
    log.epoch_ends = {0: 60, 1: end}
    reader = OffsetReader(parse_options(log.options(), stream=False))
    try:
        topics = reader.topics()
        bounds = reader.bounds(topics, reader.partitions(topics))
        (view,) = reader.views({("t", 0): (0, 100)}, bounds, parse_where("leader_epoch = 1"))
    finally:
        reader.close()
    assert view.epochs.clip(0, 100).spans == (cut,)
