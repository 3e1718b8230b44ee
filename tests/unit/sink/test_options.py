"""Options and settings of the sink, its partitioner against another client's, and decisions as records."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from kafka_ds.client.producer_settings import parse_producer_settings
from kafka_ds.errors import OptionError, UnknownLayout
from kafka_ds.records.arrays import fixed
from kafka_ds.records.compression import Codec
from kafka_ds.records.encoder import BinaryColumn
from kafka_ds.records.partitioner import NO_PARTITION, STICKY, STICKY_FIELDS
from kafka_ds.sink.batches import loops
from kafka_ds.sink.columns import check_columns, describe_rows
from kafka_ds.sink.commit_records import (
    attempt_id,
    commit_key,
    commit_value,
    finished_key,
    finished_value,
    is_attempt_of,
    last_commit,
    lock_id,
)
from kafka_ds.sink.options import SINK_OPTIONS, SinkOptions, parse_sink_options
from kafka_ds.sink.protocol import BatchAttempt, BatchCommit, LastCommit, Span
from kafka_ds.topic.batches.arrow import columns_of

SERVERS = {"kafka.bootstrap.servers": "h:9092"}


# -- settings ---------------------------------------------------------------------------------------


def test_settings_have_kafkas_names_and_words() -> None:
    settings = parse_producer_settings(
        {
            **SERVERS, "kafka.acks": "1", "kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7",
            "kafka.compression.gzip.level": "9", "kafka.Linger.Ms": "5", "kafka.batch.size": "1000",
            "kafka.partitioner.ignore.keys": "true", "kafka.max.block.ms": "7", "kafka.client.id": "me",
            "topic": "not a setting",
        }
    )  # fmt: skip
    assert (settings.acks, settings.compression, settings.compression_level) == (1, Codec.ZSTD, 7)
    assert (settings.batch_size, settings.keys_decide) == (1000, False)
    assert (settings.client.default_api_timeout_ms, settings.client.client_id) == (7, "me")
    # KIP-679: fewer acknowledgements than all switch it off, where nobody asked for it.
    assert not settings.enable_idempotence
    assert parse_producer_settings(SERVERS).enable_idempotence


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("acks", "2", "all or -1 or 1 or 0"),
        ("compression.type", "brotli", "none or gzip"),
        ("compression.lz4.level", "18", "between 1 and 17"),
        ("compression.snappy.level", "1", "not a setting of a Kafka producer"),
        ("batch.size", "many", "an integer"),
        ("batch.size", "0", "between 1 and"),
        ("key.serializer", "x", "encode them with DataFrame operations"),
        ("transactional.id", "x", "transactionalIdPrefix"),
        ("partitioner.class", "x", "partition"),
        ("no.such.setting", "x", "is not a setting of a Kafka"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.{name}.*{said}"):
        parse_producer_settings({**SERVERS, f"kafka.{name}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("acks", "1"), ("retries", "0"), ("max.in.flight.requests.per.connection", "6")],
)
def test_idempotence_that_was_asked_for_is_not_dropped_in_silence(name: str, value: str) -> None:
    given_ = {**SERVERS, f"kafka.{name}": value}
    assert not parse_producer_settings(given_).enable_idempotence
    with pytest.raises(OptionError, match=f"which 'kafka.{name}' excludes"):
        parse_producer_settings({**given_, "kafka.enable.idempotence": "true"})


# -- options ----------------------------------------------------------------------------------------


def options(stream: bool = True, **more: str) -> SinkOptions:
    return parse_sink_options({**SERVERS, **more}, stream=stream)


def test_transactions_are_found_again_by_the_checkpoint_or_a_prefix() -> None:
    made = options(checkpointLocation="/a/b").prefix
    assert (
        made
        == options(checkpointLocation="/a/b/").prefix
        != options(checkpointLocation="/a/c").prefix
    )
    assert options(transactionalIdPrefix="mine", checkpointLocation="/a").prefix == "mine"
    assert options(deliveryGuarantee="at_least_once").prefix is None
    assert options(stream=False).prefix is None
    with pytest.raises(OptionError, match="'transactionalIdPrefix' must be given"):
        options()
    with pytest.raises(OptionError, match="exactly_once, which the settings"):
        options(**{"checkpointLocation": "/a", "kafka.acks": "1"})
    with pytest.raises(OptionError, match="more than 200 characters"):
        options(transactionalIdPrefix="x" * 201)


def test_an_unknown_option_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        OptionError, match="'tpoic' is not an option of a write; did you mean 'topic'"
    ):
        options(tpoic="x")
    with pytest.raises(OptionError, match="option 'topic' is empty"):
        options(checkpointLocation="/a", topic=" ")
    # As made from a variable that is not set: what was decided under the other name would not be found.
    for name in ("transactionalIdPrefix", "decisionsTopic"):
        with pytest.raises(OptionError, match=f"option '{name}' is empty"):
            options(checkpointLocation="/a", **{name: " "})
    with pytest.raises(OptionError, match="'deliveryGuarantee' is 'once'"):
        options(deliveryGuarantee="once")
    assert all(text for text in SINK_OPTIONS.values())


@pytest.mark.parametrize(
    "spelt",
    ["/a/b/", "//a//b", "/a/./b", "/a/c/../b", "file:/a/b", "file:///a/b/", "FILE://localhost/a/b"],
)
def test_a_checkpoint_is_the_same_however_it_is_spelt(spelt: str) -> None:
    """Hadoop treats these as one folder: with a different prefix earlier decisions would not be found."""
    assert options(checkpointLocation=spelt).prefix == options(checkpointLocation="/a/b").prefix


def test_other_checkpoints_have_other_prefixes() -> None:
    places = ["/a", "a", "/", "/a/b", "file://host/a", "hdfs://h/a", "hdfs://i/a", "s3a://a"]
    assert len({options(checkpointLocation=place).prefix for place in places}) == len(places)
    slashes = options(checkpointLocation="hdfs://h//a/").prefix
    assert slashes == options(checkpointLocation="hdfs://h/a").prefix
    # Of a version before paths were put into one spelling: checkpoints in use go on.
    assert options(checkpointLocation="/a/b").prefix == "kafka-ds-662b7b62a798bb2d"


@pytest.mark.parametrize(
    "name", ["transactionalIdPrefix", "decisionsTopic", "kafka.transaction.timeout.ms"]
)
def test_what_transactions_alone_need_is_refused_without_them(name: str) -> None:
    for stream in (True, False):
        with pytest.raises(
            OptionError, match=f"option '{name}' applies only to exactly-once streams"
        ):
            options(stream, **{name: "1", "deliveryGuarantee": "at_least_once"})


def test_what_says_nothing_in_a_write_is_refused() -> None:
    for stream in (True, False):
        with pytest.raises(OptionError, match=r"save\(path\).*name the topic"):
            options(stream, path="/a", checkpointLocation="/a")
    for name in ("checkpointLocation", "queryName"):
        with pytest.raises(OptionError, match=f"'{name.lower()}' is not an option of a write"):
            options(False, **{name: "/a"})
    assert options(checkpointLocation="/a", queryName="q").prefix


def test_columns_are_those_of_sparks_sink() -> None:
    types = {"value": "binary", "topic": "string", "offset": "bigint"}
    assert check_columns(types, None).names == {"value", "topic"}
    with pytest.raises(OptionError, match="column 'value' is missing"):
        check_columns({"key": "string"}, "t")
    with pytest.raises(OptionError, match="option 'topic' must be given"):
        check_columns({"value": "string"}, None)
    with pytest.raises(OptionError, match="column 'partition' is bigint; it has to be int"):
        check_columns({"value": "string", "partition": "bigint"}, "t")


def test_rows_are_named_by_their_places() -> None:
    assert describe_rows([4], 2) == "row 4 of Spark partition 2"
    assert describe_rows(range(9), 0) == "rows 0, 1, 2 and 6 more of Spark partition 0"


# -- partitions -------------------------------------------------------------------------------------


def column(values: list[bytes | None]) -> BinaryColumn:
    count = len(values)
    batch = pa.record_batch(
        {
            "offset": pa.array(range(count), pa.int64()),
            "leader_epoch": pa.array([0] * count, pa.int32()),
            "timestamp_type": pa.array([0] * count, pa.int32()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
            "key": pa.array(values, pa.binary()),
        }
    )
    return columns_of(batch).key


def assigned(keys: list[bytes | None], wanted: list[int] | None = None, **more: Any) -> list[int]:
    count, sticky = len(keys), more.get("sticky", np.zeros(STICKY_FIELDS, np.int64))
    out = np.empty(count, np.int32)
    places = fixed(np.array(wanted or [NO_PARTITION] * count, np.int32))
    values = column([b"x" * 84] * count)
    keys_decide, bytes_max = more.get("keys_decide", True), more.get("bytes_max", 1_000)
    loops().assign(places, column(keys), values, keys_decide, bytes_max, 7, sticky, out)
    return out.tolist()


def test_a_key_goes_where_every_client_puts_it() -> None:
    random = Random(1)
    keys = [random.randbytes(n % 41) for n in range(2_000)]
    assert assigned(list(keys)) == [(murmur2_of_kafka_python(k) & 0x7FFF_FFFF) % 7 for k in keys]


def test_rows_without_keys_stay_together_and_move_on() -> None:
    sticky = np.zeros(STICKY_FIELDS, np.int64)
    sticky[STICKY] = 5
    # A hundred bytes a row, a thousand a batch: ten rows, and on to the next, around the end.
    keys: list[bytes | None] = [None] * 25
    assert assigned(keys, sticky=sticky) == [5] * 10 + [6] * 10 + [0] * 5
    assert assigned(keys[:10], sticky=sticky) == [0] * 5 + [1] * 5
    # Partitions that rows name, and keys, do not count; keys that are to be ignored are as none.
    mixed: list[bytes | None] = [None, b"k", None]
    assert assigned(mixed, [3, NO_PARTITION, NO_PARTITION])[::2] == [3, 0]
    assert assigned(mixed, keys_decide=False) == [0, 0, 0]


def test_rows_are_put_in_order_by_partition() -> None:
    ends, rows = np.zeros(4, np.int64), np.empty(6, np.int64)
    loops().order(fixed(np.array([2, 0, 2, 3, 0, 2], np.int32)), ends, rows)
    assert rows.tolist() == [1, 4, 0, 2, 5, 3]
    assert ends.tolist() == [2, 2, 5, 6]


# -- records ----------------------------------------------------------------------------------------

DECISION = BatchCommit(
    query="q",
    batch=7,
    attempts=(
        BatchAttempt(
            transactional_id="p-0-0",
            producer_id=2**40,
            epoch=3,
            spans=(Span(topic="ü", partition=1, first_offset=5, last_offset=9, record_count=4),),
        ),
    ),
)


def test_a_decision_survives_its_record() -> None:
    records = [
        (commit_key("p"), b"{}"),
        (commit_key("p"), commit_value(DECISION)),
        (commit_key("other"), b"nonsense of somebody else"),
    ]
    assert last_commit("p", records, settled=True) == LastCommit(
        batch_commit=DECISION, finished=False
    )
    finished = (finished_key("p"), finished_value(DECISION))
    assert last_commit("p", [*records, finished], settled=True).finished
    assert last_commit("p", [finished, *records], settled=True).finished
    assert not last_commit("p", [], settled=False).settled


def test_a_decision_tells_which_runs_were_before() -> None:
    of_run = replace(DECISION, run="c", earlier=("a", "b"))
    found = last_commit("p", [(commit_key("p"), commit_value(of_run))], settled=True)
    assert found.batch_commit == of_run
    # Of a version before runs were noted.
    before = commit_value(DECISION).replace(b',"run":null,"earlier":[]', b"")
    assert b"run" not in before
    assert last_commit("p", [(commit_key("p"), before)], settled=True).batch_commit == DECISION


def test_an_older_batch_that_is_finished_says_nothing_of_the_last() -> None:
    older = BatchCommit(query="q", batch=6, attempts=())
    records = [
        (commit_key("p"), commit_value(DECISION)),
        (finished_key("p"), finished_value(older)),
    ]
    assert not last_commit("p", records, settled=True).finished


def test_a_later_layout_is_an_error() -> None:
    later = commit_value(DECISION).replace(b'"layout":1', b'"layout":2')
    with pytest.raises(UnknownLayout, match="layout 2"):
        last_commit("p", [(commit_key("p"), later)], settled=True)


def test_a_prefix_owns_no_ids_of_a_longer_one() -> None:
    assert is_attempt_of("a", attempt_id("a", 1, 0))
    assert not is_attempt_of("a", attempt_id("a-1", 1, 0))
    assert not is_attempt_of("a", lock_id("a"))
    assert is_attempt_of("a.+", attempt_id("a.+", 12, 3))
    assert not is_attempt_of("a.", attempt_id("ab", 1, 0))
