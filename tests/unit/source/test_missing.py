"""Files of a plan that are removed while tasks read them: whether their rows are lost, or only elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.client.cluster_pool import close_pool
from kafka_ds.errors import PlanGone
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.scan_plan import ColdRange
from kafka_ds.source.read.partition_reader import ReadConfig, read_task
from tests.fakes.scripted_broker import TOPIC_ID
from tests.unit.source.log_broker import OTHER_ID, LogBroker
from tests.unit.source.made_plans import plan, schema
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch


@pytest.fixture
def log() -> Iterator[LogBroker]:
    there = LogBroker()
    yield there
    close_pool()
    there.broker.close()


@pytest.fixture
def lake(tmp_path: Path) -> SourceLake:
    """Three files of ten rows, and the middle one is removed when the plan is made."""
    lake = SourceLake(tmp_path, topic_id=TOPIC_ID)
    for start in (0, 10, 20):
        lake.add(0, [record_batch([LakeRow(offset=n) for n in range(start, start + 10)])])
    return lake


def read(lake: SourceLake, log: LogBroker, *removed: int, fail: bool = False) -> list[int]:
    """The offsets of a plan of [3, 30), of whose files some are not there any more when it runs."""
    (task,) = plan(lake, Predicate(), startingOffsets='{"t":{"0":3}}').tasks
    (piece,) = task.ranges
    assert isinstance(piece, ColdRange)
    for number in removed:
        Path(piece.files[number].path).unlink()
    options = log.options(**{"kafka.default.api.timeout.ms": "300", "kafka.retry.backoff.ms": "1"})
    config = ReadConfig(
        client=parse_options(options).client, schema=schema(["offset"]), fail_on_data_loss=fail
    )
    return [n for rows in read_task(task, config) for n in rows["offset"].to_pylist()]


def test_rows_of_a_deleted_topic_count_as_lost(
    lake: SourceLake, log: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    log.there = False
    with caplog.at_level(logging.WARNING, "kafka_ds.source"):
        assert read(lake, log, 1, 2) == list(range(3, 10))
    assert "10 offsets are not there: t-0 [10, 20)" in caplog.text
    assert "10 offsets are not there: t-0 [20, 30)" in caplog.text


def test_rows_of_a_topic_that_was_created_again_count_as_lost(
    lake: SourceLake, log: LogBroker
) -> None:
    log.topic_id = OTHER_ID
    assert read(lake, log, 0, 1, 2) == []


def test_rows_below_the_logs_start_count_as_lost(
    lake: SourceLake, log: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    log.start = 10
    with caplog.at_level(logging.WARNING, "kafka_ds.source"):
        assert read(lake, log, 0) == list(range(10, 30))
    assert "7 offsets are not there: t-0 [3, 10)" in caplog.text


@pytest.mark.parametrize("start", [0, 19])
def test_rows_that_may_be_in_other_files_do_not(
    lake: SourceLake, log: LogBroker, start: int
) -> None:
    """A table whose files were merged has them still."""
    log.start = start
    with pytest.raises(PlanGone, match="run the query again"):
        read(lake, log, 1)


def test_where_no_broker_answers_nothing_counts_as_lost(lake: SourceLake, log: LogBroker) -> None:
    log.broker.close()
    with pytest.raises(PlanGone, match="run the query again"):
        read(lake, log, 1)


def test_who_takes_no_losses_is_told_of_the_file(lake: SourceLake, log: LogBroker) -> None:
    log.there = False
    with pytest.raises(PlanGone, match="run the query again"):
        read(lake, log, 1, fail=True)
    assert not log.broker.seen
