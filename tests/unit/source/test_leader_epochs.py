"""Leader epochs in batches: a log as a leader left it, and plans that hold no rows of a later one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.errors import OptionError, PlanDiverged, TopicGone
from kafka_ds.source.batch import read_config
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import Options, parse_options
from kafka_ds.source.plan.pinned import PinnedViews, pin
from kafka_ds.source.plan.scan_plan import plan_scan
from kafka_ds.source.plan.table_scan import as_pinned, hot_reads
from kafka_ds.source.read.partition_reader import read_task
from tests.fakes.scripted_broker import TOPIC_ID
from tests.unit.source.log_broker import OTHER_ID, LogBroker
from tests.unit.source.made_plans import schema
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch


@pytest.fixture
def log() -> Iterator[LogBroker]:
    """A leader of epoch 4, whose log holds [0, 100); offsets below 40 are of epoch 3."""
    there = LogBroker()
    there.broker.leader_epoch = 4
    there.epoch_ends = {2: 10, 3: 40}
    yield there
    there.broker.close()


@pytest.fixture
def lake(tmp_path: Path) -> SourceLake:
    """Epoch 2 wrote [0, 20), 3 up to 35, 4 the rest; in files that overlap, as an engine may leave them."""
    lake = SourceLake(tmp_path, topic_id=TOPIC_ID)

    def rows(*offsets: int) -> list[LakeRow]:
        return [LakeRow(offset=n, leader_epoch=2 + (n >= 20) + (n >= 35)) for n in offsets]

    lake.add(0, [record_batch(rows(*range(10)))])
    lake.add(0, [record_batch(rows(*range(10, 30)))])
    lake.add(0, [record_batch(rows(*range(30, 34), *range(36, 50)))], end=49)
    return lake


def options(log: LogBroker, **more: str) -> Options:
    given = log.options(**more)
    if {"subscribe", "assign"} & set(more):
        del given["subscribePattern"]
    return parse_options(given, stream=False)


def end(parsed: Options) -> int:
    return max((view.end for view in pin(parsed, Predicate()).views), default=0)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("3", 40), ("2", 10), ("4", 100), ('{"t":{"0":3}}', 40)],
)
def test_a_log_is_read_as_a_leader_left_it(log: LogBroker, asked: str, wanted: int) -> None:
    assert end(options(log, asOfLeaderEpoch=asked)) == wanted


@pytest.mark.parametrize(("epoch", "wanted"), [(1, 0), (2, 20), (3, 36), (4, 50), (7, 50)])
def test_a_table_is_read_as_a_leader_left_it(lake: SourceLake, epoch: int, wanted: int) -> None:
    given = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "t", "lake": lake.uri}
    remote = {**given, "tiers": "remote", "asOfLeaderEpoch": str(epoch)}
    assert end(parse_options(remote, stream=False)) == wanted


def test_of_epochs_that_a_leader_lost_the_table_tells(log: LogBroker, lake: SourceLake) -> None:
    """A leader on an empty disk knows only its own epoch, and would say that earlier ones end where it begins."""
    log.first_epoch, log.epoch_ends = -1, {3: 100}
    both = {"lake": lake.uri, "tiers": "both"}
    assert end(options(log, asOfLeaderEpoch="3", **both)) == 36
    log.broker.leader_epoch, log.epoch_ends = 6, {5: 100}
    with pytest.raises(OptionError, match="'asOfLeaderEpoch'.*not known of t-0"):
        end(options(log, asOfLeaderEpoch="5", **both))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"asOfLeaderEpoch": "new"}, "'asOfLeaderEpoch' is 'new'"),
        ({"asOfLeaderEpoch": "-1"}, "'asOfLeaderEpoch'"),
        ({"asOfLeaderEpoch": '{"t":{"0":-1}}'}, "'asOfLeaderEpoch' holds an epoch below 0: t-0"),
        ({"asOfLeaderEpoch": '{"t":{"1":1}}'}, "'asOfLeaderEpoch' must name every partition"),
        ({"asOfLeaderEpoch": "1", "endingOffsets": "latest"}, "'asOfLeaderEpoch' and 'endingOffsets'"),
        ({"asOfLeaderEpoch": "5"}, r"'asOfLeaderEpoch' names epochs that there were not yet: 5 of t-0 \(newest: 4\)"),
        ({"asOfLeaderEpoch": '{"t":{"0":9}}'}, r"'asOfLeaderEpoch' names .* 9 of t-0 \(newest: 4\)"),
    ],
)  # fmt: skip
def test_an_epoch_that_makes_no_sense_is_named(
    log: LogBroker, given: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        end(options(log, **given))


def test_a_stream_ends_with_no_epoch(log: LogBroker) -> None:
    with pytest.raises(OptionError, match="'asOfLeaderEpoch' is not valid in a stream"):
        parse_options(log.options(asOfLeaderEpoch="1"), stream=True)


# -- the hot part of a scan ---------------------------------------------------------------------


def pinned_options(log: LogBroker, scanned: PinnedViews, **more: str) -> Options:
    """As `kafka_ds.scan` asks for the hot part of what it has pinned."""
    (ranges,) = hot_reads(scanned.views, Predicate())
    start, until = ranges["t", 0]
    document = as_pinned(scanned.views, ranges).document()
    return options(
        log,
        assign='{"t":[0]}',
        startingOffsets=json.dumps({"t": {"0": start}}),
        endingOffsets=json.dumps({"t": {"0": until}}),
        pinnedTo=json.dumps(document),
        **more,
    )


def test_a_scan_reads_what_it_was_pinned_to(log: LogBroker) -> None:
    asked = pinned_options(log, pin(options(log), Predicate()))
    log.end = 300
    (view,) = pin(asked, Predicate()).views
    assert (view.start, view.end, view.leader_epoch, view.epoch_max) == (0, 100, 4, 4)
    # A clean change of the leader cuts nothing that was committed.
    log.broker.leader_epoch, log.epoch_ends = 5, {4: 100}
    (view,) = pin(asked, Predicate()).views
    assert view.leader_epoch == 4


def _created_again(log: LogBroker) -> None:
    log.topic_id = OTHER_ID


def _deleted(log: LogBroker) -> None:
    log.there = False


def _cut(log: LogBroker) -> None:
    log.broker.leader_epoch, log.epoch_ends = 5, {4: 99}


@pytest.mark.parametrize(
    ("happens", "error", "message"),
    [
        (_created_again, TopicGone, "t was deleted and created again"),
        (_deleted, OptionError, "topics that do not exist: .'t'"),
        (_cut, PlanDiverged, "up to 100 under leader epoch 4, whose records now end at 99"),
    ],
)
def test_a_scan_reads_no_others_rows(
    log: LogBroker, caplog: pytest.LogCaptureFixture, happens: Any, error: Any, message: str
) -> None:
    scanned = pin(options(log), Predicate())
    asked = pinned_options(log, scanned)
    happens(log)
    with pytest.raises(error, match=message):
        pin(asked, Predicate())
    caplog.set_level(logging.WARNING, "kafka_ds.source")
    left_out = pin(pinned_options(log, scanned, failOnDataLoss="false"), Predicate())
    assert left_out.views == ()
    assert "left out" in caplog.text


def test_rows_that_were_copied_since_are_the_plans_or_an_error(
    log: LogBroker, lake: SourceLake
) -> None:
    """The log was cut and written again, copied to the table, and its new leader knows nothing of before."""
    log.first_epoch = -1

    def offsets(epoch: int) -> list[int]:
        log.broker.leader_epoch, log.epoch_ends = epoch, {}
        asked = pinned_options(log, pin(options(log, endingOffsets=ends), Predicate()))
        log.broker.leader_epoch, log.epoch_ends = 6, {epoch: -1}
        with_lake = replace(asked, tiers="both", lake=lake.uri)
        (task,) = plan_scan(pin(with_lake, Predicate()).views, Predicate()).tasks
        config = read_config(with_lake, schema(["offset"]), Predicate())
        return [n for batch in read_task(task, config) for n in batch["offset"].to_pylist()]

    ends = '{"t":{"0":50}}'
    assert offsets(4) == [*range(34), *range(36, 50)]
    with pytest.raises(PlanDiverged, match="t-0 was planned under leader epoch 3, and holds rec"):
        offsets(3)


# -- topics that are gone -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "named",
    [
        {"subscribe": "t"},
        {"assign": '{"t":[0]}'},
        {"assign": '{"t":[0]}', "startingOffsets": '{"t":{"0":5}}'},
    ],
)
def test_a_topic_that_is_gone_is_lost_or_an_error(
    log: LogBroker, caplog: pytest.LogCaptureFixture, named: dict[str, str]
) -> None:
    log.there = False
    with pytest.raises(OptionError, match="names topics that do not exist: .'t'"):
        pin(options(log, **named), Predicate())
    caplog.set_level(logging.WARNING, "kafka_ds.source")
    assert pin(options(log, **named, failOnDataLoss="false"), Predicate()).views == ()
    assert "names topics that do not exist: ['t']; reading without them" in caplog.text


def test_a_partition_that_is_not_there_is_lost_or_an_error(log: LogBroker) -> None:
    named = {"assign": '{"t":[0,3]}'}
    with pytest.raises(OptionError, match="partitions that do not exist: t-3"):
        pin(options(log, **named), Predicate())
    (view,) = pin(options(log, **named, failOnDataLoss="false"), Predicate()).views
    assert view.partition == 0
