"""Which part of a scan is Spark's and which the source's; earlier versions of tables; unreachable brokers."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable
from hypothesis import given

from kafka_ds.client import cluster
from kafka_ds.delta.history import history
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.errors import ClientError, NoSuchHost, OptionError
from kafka_ds.source.filters.intervals import ALL, HIGHEST, LOWEST, Intervals
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import Options, parse_options
from kafka_ds.source.plan.pinned import pin
from kafka_ds.source.plan.scan_plan import LakeFile, LakeView, PartitionView
from kafka_ds.source.plan.table_scan import (
    TableVersion,
    as_option,
    cold,
    conditions,
    hot,
    hot_reads,
    within,
)
from kafka_ds.topic.names import topic_table
from tests.unit.source.made_views import file, view, views
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch

AWAY = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.default.api.timeout.ms": "200",
    "fetchOffset.numRetries": "0",
    "subscribe": "t",
}
TABLE = TableVersion(uri="lake/topics/t", version=3, held={0: (2, 10)})


def lake_of(*files: LakeFile) -> LakeView:
    return LakeView(version=3, start=0, end=10, files=files)


@given(views())
def test_each_wanted_offset_is_cold_or_hot(seen: PartitionView) -> None:
    wanted = Intervals.of((seen.start, seen.end))
    one, other = cold(seen, Predicate()), hot(seen, Predicate())
    assert one.union(other) == wanted
    assert not one.intersect(other)
    reads = hot_reads([seen], Predicate())
    assert Intervals.of(*(span for each in reads for span in each.values())) == other


def test_a_whole_table_is_read_without_a_condition() -> None:
    seen = view(end=12, lake=lake_of(file(2, 5), file(6, 9)))
    assert conditions([seen], TABLE, Predicate()) == []
    two = TableVersion(uri="u", version=3, held={0: (2, 10), 1: (0, 3)})
    assert conditions([seen], two, Predicate()) == ["partition IN (0)"]
    late = view(end=12, start=3, lake=lake_of(file(2, 5), file(6, 9)))
    assert conditions([late], TABLE, Predicate()) == [
        "(partition = 0 AND ((offset >= 3L AND offset < 10L)))"
    ]
    assert (
        conditions([view(start=10, end=12, lake=lake_of(file(0, 9)))], TABLE, Predicate()) is None
    )


def test_keys_are_said_in_sql() -> None:
    seen = view(lake=lake_of(file(0, 9)))
    wanted = Predicate(keys=frozenset({b"b", b"\xff", b""}))
    assert (conditions([seen], TABLE, wanted) or [])[-1] == "key IN (X'', X'62', X'ff')"
    assert (conditions([seen], TABLE, Predicate(keys=frozenset())) or [])[-1] == "false"


def test_files_of_nobodys_records_are_named() -> None:
    seen = view(end=10, lake=lake_of(file(0, 9)))
    table = TableVersion(uri="u", version=3, held={0: (0, 10)}, quarantined=((0, "a'b"),))
    (said,) = conditions([seen], table, Predicate()) or []
    assert said == "NOT (partition = 0 AND _metadata.file_name = decode(unhex('612762'), 'UTF-8'))"


@pytest.mark.parametrize("stranger", [7, -1], ids=["another", "null"])
def test_files_of_nobodys_records_hide_in_no_partition(stranger: int) -> None:
    """Partitions that have no record but others' files are kept out, though all records there are wanted."""
    seen = view(end=10, lake=lake_of(file(0, 9)))
    table = TableVersion(uri="u", version=3, held={0: (0, 10)}, quarantined=((stranger, "c"),))
    assert conditions([seen], table, Predicate()) == ["partition IN (0)"]


def test_membership_is_said_in_sql() -> None:
    assert within("offset", ALL) == "offset IS NOT NULL"
    assert within("offset", Intervals()) == "false"
    assert within("offset", Intervals.points([3])) == "(offset = 3L)"
    assert (
        within("offset", Intervals.of((LOWEST, 3), (9, HIGHEST)))
        == "((offset < 3L) OR (offset >= 9L))"
    )
    lowest = within("timestamp", Intervals.points([LOWEST]), "timestamp_micros({})")
    assert lowest == "(timestamp = timestamp_micros((-9223372036854775807L - 1L)))"


@pytest.mark.parametrize(
    ("name", "value", "spelt"),
    [
        ("columns", ["key", "offset"], "key,offset"),
        ("Subscribe", ("t", "u"), "t,u"),
        ("assign", {"t": [0, 1]}, '{"t": [0, 1]}'),
        ("includeHeaders", True, "true"),
        ("minPartitions", 4, "4"),
    ],
)
def test_values_are_spelt_as_options_are(name: str, value: object, spelt: str) -> None:
    assert as_option(name, value) == spelt


# -- as of then ---------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> SourceLake:
    """Version 0 creates the table, versions 1 to 3 add ten offsets each, one minute apart."""
    lake = SourceLake(tmp_path)
    for start in (0, 10, 20):
        lake.add(0, [record_batch([LakeRow(offset=n) for n in range(start, start + 10)])])
    for version in range(4):
        path = tmp_path / topic_table("t") / commit_file(version).removeprefix("/")
        os.utime(path, (60 * (version + 1),) * 2)
    return lake


def options(lake: SourceLake, **more: str) -> Options:
    given = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "t", "lake": lake.uri, **more}
    return parse_options(given, stream=False)


def end(parsed: Options) -> int:
    pinned = pin(parsed, Predicate())
    return max((each.end for each in pinned.views), default=0)


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ({"asOfVersion": "1"}, 10),
        ({"asOfVersion": "3"}, 30),
        ({"asOfTimestamp": "120000"}, 10),
        ({"asOfTimestamp": "179999"}, 10),
        ({"asOfTimestamp": "1970-01-01T01:03:00+01:00"}, 20),
        ({"asOfTimestamp": "99999999999999"}, 30),
    ],
)
def test_a_table_is_read_as_it_was(lake: SourceLake, asked: dict[str, str], held: int) -> None:
    assert end(options(lake, **asked)) == held
    tables = pin(options(lake, **asked), Predicate(), with_tables=True).tables
    assert tables["t"].version == held // 10


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"asOfVersion": "4"}, "option 'asOfVersion'.*from version 0 of 1970-01-01T00:01.* to 3 of"),
        ({"asOfTimestamp": "59999"}, "option 'asOfTimestamp'.*from version 0 of"),
        ({"asOfTimestamp": "2013-01-01 00:00:00"}, "option 'asOfTimestamp'.*with its zone"),
        ({"asOfVersion": "-1"}, "option 'asOfVersion'"),
        ({"asOfVersion": "1", "asOfTimestamp": "1"}, "'asOfVersion' and 'asOfTimestamp'"),
        ({"asOfVersion": "1", "tiers": "both"}, "option 'asOfVersion'.*'tiers' can only be remote"),
        ({"asOfVersion": "1", "startingTimestamp": "1"}, "option 'startingTimestamp'"),
    ],
)  # fmt: skip
def test_a_version_that_is_not_there_is_named(
    lake: SourceLake, asked: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        pin(options(lake, **asked), Predicate())


def test_one_version_is_of_one_table(tmp_path: Path) -> None:
    for name in ("t", "u"):
        SourceLake(tmp_path, name).add(0, [record_batch([LakeRow(offset=0)])])
    both = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "t,u", "lake": str(tmp_path)}
    with pytest.raises(OptionError, match="'asOfVersion' is a version of one table.*'t', 'u'"):
        pin(parse_options({**both, "asOfVersion": "1"}), Predicate())
    assert (
        len(pin(parse_options({**both, "asOfTimestamp": "99999999999999"}), Predicate()).views) == 2
    )


def test_a_topic_without_a_table_is_named_with_the_lake(lake: SourceLake) -> None:
    """Brokers may well have such a topic: then the address is wrong, or nothing is tiered yet."""
    with pytest.raises(OptionError, match=f"option 'subscribe'.*no tables in {lake.uri}: .'u'"):
        pin(options(lake, subscribe="u", tiers="remote"), Predicate())


def test_versions_that_a_clean_up_took_are_told(lake: SourceLake) -> None:
    table = Path(lake.uri) / topic_table("t")
    DeltaTable(table).create_checkpoint()
    log = DeltaLog(lake.store, topic_table("t"))
    for version in (0, 1):
        (table / commit_file(version)).unlink()
    assert list(history(log)) == [3], "2 cannot be made of what is left"
    (table / commit_file(3)).unlink()
    assert list(history(log)) == [3]
    assert end(options(lake, asOfVersion="3")) == 30
    with pytest.raises(OptionError, match="option 'asOfVersion'.*from version 3"):
        pin(options(lake, asOfVersion="2"), Predicate())


@pytest.mark.parametrize("option", ["asOfVersion", "asOfTimestamp"])
def test_a_stream_does_not_read_back(option: str) -> None:
    with pytest.raises(OptionError, match=f"'{option}' is not valid in a stream"):
        parse_options({**AWAY, option: "1"}, stream=True)


# -- brokers away -------------------------------------------------------------------------------


def test_without_brokers_the_lake_is_read_with_a_warning(
    lake: SourceLake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert end(parse_options({**AWAY, "lake": lake.uri})) == 30
    assert "t-0 up to offset 30" in caplog.text
    assert "127.0.0.1:1" in caplog.text


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({}, ClientError, "127.0.0.1:1"),
        ({"tiers": "local"}, ClientError, "127.0.0.1:1"),
        ({"isolation": "read_uncommitted"}, ClientError, "127.0.0.1:1"),
        ({"startingTimestamp": "5"}, ClientError, "127.0.0.1:1"),
        ({"endingOffsets": '{"t":{"0":31}}'}, OptionError, "'endingOffsets'.*t-0; the brokers are away.*127.0.0.1:1"),
        ({"startingOffsets": '{"t":{"0":31}}'}, OptionError, "'startingOffsets'.*beyond what the lake holds of t-0;"),
        (
            {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":8}}'},
            OptionError,
            "'startingOffsets' lies beyond the end in t-0; the brokers are away",
        ),
        ({"subscribe": "x"}, OptionError, "'subscribe'.*'x'.*the brokers are away"),
    ],
)  # fmt: skip
def test_what_only_the_brokers_know_is_still_their_error(
    lake: SourceLake, more: dict[str, str], error: Any, message: str
) -> None:
    given = {**AWAY, **({"lake": lake.uri} if more else {}), **more}
    with pytest.raises(error, match=message):
        pin(parse_options(given), Predicate())


def test_a_name_that_nobody_knows_is_no_brokers_that_are_away(
    lake: SourceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong name every query would silently read only the lake: who wants that sets `tiers`."""

    def connect(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setitem(cluster.PATIENCE_MS, NoSuchHost, 0)
    given = {**AWAY, "kafka.bootstrap.servers": "typo.invalid:9092", "lake": lake.uri}
    given["fetchOffset.numRetries"] = "3"
    with pytest.raises(NoSuchHost, match="'kafka.bootstrap.servers'.*typo.invalid.*tiers=remote"):
        pin(parse_options(given), Predicate())
    assert end(parse_options({**given, "tiers": "remote"})) == 30
