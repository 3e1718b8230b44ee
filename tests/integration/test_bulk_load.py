"""A bulk load on a broker, without Spark around it: what it makes, what it refuses, and deaths at its worst places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
)
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from kafka_ds.client import admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.delta.store.uri import open_store
from kafka_ds.errors import BrokerTimeout, LoadUnfinished, OptionError, RowError
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.topic.events import RemoteLogEvents
from tests.fakes.process_death import ProcessDied
from tests.integration.crash_runs import crash_environment, crashed
from tests.integration.loads import (
    PARTITIONS,
    ROWS,
    assert_loaded,
    consumed,
    loaded,
    plain,
    produce,
    sink_of,
    tasks,
)
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.topics import create_topic

NUMBERS = itertools.count()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<struct<key:string,value:binary>>": HEADERS,
}
# Those of a copy that a load comes to.
POINTS = ("after_started", "before_commit", "after_commit", "after_verify", "after_finished")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("load"), {"num.partitions": 2}) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t{next(NUMBERS)}-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:40]


def files_of(broker: BrokerProcess, topic: str) -> set[str]:
    return {each.name for each in (broker.lake / "topics" / topic).rglob("*.parquet")}


def test_a_consumer_reads_from_offset_0_and_a_producer_goes_on_behind(
    broker: BrokerProcess, topic: str
) -> None:
    messages = loaded(broker, topic)
    assert_loaded(broker, topic)
    ends = [0] * PARTITIONS
    for file in (each for message in messages for each in message.files):
        ends[file.partition] = max(ends[file.partition], file.max_offset + 1)
    assert sum(ends) == ROWS
    assert [produce(broker, topic, n) for n in range(PARTITIONS)] == ends
    assert [each[3] for each in plain(consumed(broker, topic))].count(b"after") == PARTITIONS
    assert not list((broker.lake / "_loads").rglob("*.json"))


def test_one_commit_makes_the_rows_visible(broker: BrokerProcess, topic: str) -> None:
    loaded(broker, topic)
    history = DeltaTable(str(broker.lake / "topics" / topic)).history()
    assert [each["operation"] for each in history] == ["LOAD", "CREATE TOPIC"]


def test_every_column_is_kept(broker: BrokerProcess, topic: str) -> None:
    columns = (
        "key string, value string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    rows = pa.record_batch(
        {
            "key": pa.array(["a", None, "c"]),
            "value": pa.array([None, "v", ""]),
            "partition": pa.array([2, 2, 2], pa.int32()),
            "timestamp": pa.array([1_700_000_000_123_456, 0, None], pa.timestamp("us", "UTC")),
            "headers": pa.array([[("h", b"1"), ("h", None)], [], None], HEADERS),
        }
    )
    sink = sink_of(broker, topic, columns, **{"topic.retention.ms": "-1"})
    sink.commit([sink.write(iter([rows]))])
    found = consumed(broker, topic)
    assert plain(found) == [(2, 0, b"a", None), (2, 1, None, b"v"), (2, 2, b"c", b"")]
    assert [each.timestamp()[1] for each in found[:2]] == [1_700_000_000_123, 0]
    assert [each.headers() for each in found] == [[("h", b"1"), ("h", None)], None, None]
    assert [each.leader_epoch() for each in found] == [0, 0, 0]


def test_a_topic_may_have_the_time_of_the_load(broker: BrokerProcess, topic: str) -> None:
    loaded(broker, topic, **{"topic.message.timestamp.type": "LogAppendTime"})
    assert {each.timestamp()[0] for each in consumed(broker, topic)} == {TIMESTAMP_LOG_APPEND_TIME}


def test_a_topic_without_rows_is_an_empty_one(broker: BrokerProcess, topic: str) -> None:
    sink = sink_of(broker, topic)
    sink.commit([sink.write(iter(()))])
    assert consumed(broker, topic) == []
    assert produce(broker, topic, 0) == 0


def test_the_brokers_decide_how_many_partitions(broker: BrokerProcess, topic: str) -> None:
    loaded(broker, topic, partitions="")
    assert len({partition for partition, *_ in plain(consumed(broker, topic, 2))}) == 2


def test_a_compacted_topic_may_be_loaded(broker: BrokerProcess, topic: str) -> None:
    policy = {"topic.cleanup.policy": "compact"}
    with pytest.raises(OptionError, match="remote.storage.enable=true"):
        sink_of(broker, topic, **policy)
    loaded(broker, topic, **policy, **{"topic.remote.storage.enable": "true"})
    assert_loaded(broker, topic)


@pytest.mark.parametrize(
    ("columns", "row", "settings", "problem"),
    [
        ("value string", {"value": "x" * 2000}, {"max.message.bytes": "1000"}, "max.message.bytes"),
        (
            "value string, timestamp timestamp",
            {"value": "x", "timestamp": 1_000_000},
            {},
            "older than retention.ms=604800000 of the topic; set it by option 'topic.retention.ms'",
        ),
        (
            "value string, timestamp timestamp",
            {"value": "x", "timestamp": 4_000_000_000_000_000},
            {},
            "message.timestamp.after.max.ms",
        ),
        (
            "key string, value string",
            {"key": None, "value": "x"},
            {"cleanup.policy": "compact", "remote.storage.enable": "true"},
            "column 'key' is null",
        ),
        ("value string, partition int", {"value": "x", "partition": 3}, {}, "partitions 0 to 2"),
        (
            "value string, timestamp timestamp",
            {"value": "x", "timestamp": -1},
            {},
            "before 1970",
        ),
    ],
)
def test_a_row_that_is_no_record_is_named(
    broker: BrokerProcess,
    topic: str,
    columns: str,
    row: dict[str, Any],
    settings: dict[str, str],
    problem: str,
) -> None:
    sink = sink_of(broker, topic, columns, **{f"topic.{k}": v for k, v in settings.items()})
    types = dict(each.split() for each in columns.split(", "))
    good = {"key": "k", "value": "v", "partition": 0, "timestamp": None}
    batch = pa.record_batch({n: pa.array([good[n], row[n]], TYPES[types[n]]) for n in types})
    with pytest.raises(RowError, match="row 1 of Spark partition 0: ") as told:
        sink.write(iter([batch]))
    assert problem in str(told.value)
    sink.abort([])
    assert not files_of(broker, topic)


def test_a_topic_that_exists_is_refused_in_one_line(broker: BrokerProcess, topic: str) -> None:
    loaded(broker, topic)
    with pytest.raises(OptionError) as told:
        sink_of(broker, topic)
    assert str(told.value) == f"option 'load': topic {topic} exists; a load makes a new topic"


def test_a_topic_that_comes_meanwhile_stays_what_it_is(broker: BrokerProcess, topic: str) -> None:
    sink = sink_of(broker, topic)
    messages = tasks(sink)
    create_topic(broker.bootstrap, topic)
    assert produce(broker, topic, 0) == 0
    with pytest.raises(OptionError, match="exists"):
        sink.commit([*messages])
    sink.abort([*messages])
    assert not [each for each in files_of(broker, topic) if "0" * 20 in each]
    assert [each[3] for each in plain(consumed(broker, topic, 1))] == [b"after"]


def test_what_a_failed_attempt_wrote_is_nobodys(broker: BrokerProcess, topic: str) -> None:
    sink = sink_of(broker, topic)
    (lost,) = tasks(sink, 1, rows=100)
    messages = tasks(sink)
    sink.commit([*messages, None])
    assert_loaded(broker, topic)
    assert min(offset for _, offset, *_ in plain(consumed(broker, topic))) > 0
    assert not files_of(broker, topic) & {
        each.path(sink.plan.load).rpartition("/")[2] for each in lost.files
    }


def test_a_topic_of_a_name_that_was_deleted_may_be_loaded(
    broker: BrokerProcess, topic: str
) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for _ in range(2):
        loaded(broker, topic)
        assert_loaded(broker, topic)
        client.delete_topics([topic])[topic].result()
        wait_until("its end", lambda: topic not in client.list_topics(timeout=10).topics)
    loaded(broker, topic)
    assert_loaded(broker, topic)


def test_the_load_is_not_changed_later(broker: BrokerProcess, topic: str) -> None:
    loaded(broker, topic)
    options = parse_sink_options({"kafka.bootstrap.servers": broker.bootstrap}, stream=False)
    with Cluster(options.producer.client) as cluster:
        before = cluster.topic_setting(topic, "lake.load")
        with pytest.raises(Exception, match=r"lake\.load: it is given when a topic is created"):
            admin.Admin(cluster).alter_topic_configs(topic, {"lake.load": "A" * 22})
        admin.Admin(cluster).alter_topic_configs(topic, {"lake.load": None})
        assert cluster.topic_setting(topic, "lake.load") == before


# -- the driver dies ----------------------------------------------------------------------------


def die(*_: object, **__: object) -> None:
    raise ProcessDied


def test_a_driver_that_dies_before_the_end_leaves_no_topic(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks(sink_of(broker, topic))
    sink = sink_of(broker, topic)
    messages = tasks(sink)

    # The list of files is there, and the topic is not.
    monkeypatch.setattr("kafka_ds.sink.load.LoadSink.create_topic", die)
    with pytest.raises(ProcessDied):
        sink.commit([*messages])
    monkeypatch.undo()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert topic not in client.list_topics(timeout=60).topics
    loaded(broker, topic)
    assert_loaded(broker, topic)


def test_what_was_decided_is_loaded_without_the_driver(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(broker, topic)
    messages = tasks(sink)

    monkeypatch.setattr("kafka_ds.sink.load.LoadSink.wait_for_rows", die)
    with pytest.raises(ProcessDied):
        sink.commit([*messages])
    monkeypatch.undo()
    # Spark may still call it; what the topic has, or may get, stays.
    sink.abort([*messages])
    assert_loaded(broker, topic)
    with pytest.raises(OptionError, match="exists"):
        sink_of(broker, topic)


def test_an_answer_that_is_lost_is_no_refusal(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(broker, topic)
    messages = tasks(sink)
    create = admin.Admin.create_topic

    def twice(*arguments: Any, **named: Any) -> Any:
        create(*arguments, **named)
        return create(*arguments, **named)

    monkeypatch.setattr(admin.Admin, "create_topic", twice)
    sink.commit([*messages])
    assert_loaded(broker, topic)


def test_who_does_not_know_says_so_and_removes_nothing(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(broker, topic)
    messages = tasks(sink)
    create = admin.Admin.create_topic

    def silent(*arguments: Any, **named: Any) -> Any:
        create(*arguments, **named)
        raise BrokerTimeout("no answer")

    monkeypatch.setattr(admin.Admin, "create_topic", silent)
    with pytest.raises(LoadUnfinished, match="unknown"):
        sink.commit([*messages])
    sink.abort([*messages])
    assert_loaded(broker, topic)


# -- the broker dies ----------------------------------------------------------------------------


@pytest.mark.parametrize("who", [pytest.param("self", marks=pytest.mark.slow), "parent"])
def test_worker_and_broker_die_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The worker alone, which is started again; or the broker with it, which is: each load gets one step further."""
    for point in POINTS:
        folder = tmp_path / point
        folder.mkdir()
        broker = BrokerProcess(folder, {}, crash_environment(folder, (point,), who)).start()
        try:
            sink = sink_of(broker, "t", **{"kafka.default.api.timeout.ms": "20000"})
            messages = tasks(sink)
            if who == "parent":
                with monkeypatch.context() as patch, pytest.raises((ProcessDied, LoadUnfinished)):
                    patch.setattr("kafka_ds.sink.load.LoadSink.wait_for_rows", die)
                    sink.commit([*messages])
                wait_until("its death", lambda: not broker.running())  # noqa: B023
                broker.kill()
                broker.start()
            else:
                sink.commit([*messages])
            assert crashed(folder) == {point}
            wait_until("the rows", lambda: _has_all(broker))  # noqa: B023
            assert_loaded(broker, "t")
            broker.kill()
            broker.start()
            assert_loaded(broker, "t")
        finally:
            broker.stop()


def _has_all(broker: BrokerProcess) -> bool:
    try:
        return len(consumed(broker, "t")) == ROWS
    except Exception:
        return False


def test_a_list_that_is_lost_keeps_its_topic_from_being_empty(tmp_path: Path) -> None:
    """A topic that lacks its rows is better seen to lack them."""
    with running_broker(tmp_path) as broker:
        options = parse_sink_options({"kafka.bootstrap.servers": broker.bootstrap}, stream=False)
        with Cluster(options.producer.client) as cluster:
            admin.Admin(cluster).create_topic("t", partitions=1, configs={"lake.load": "A" * 22})
        wait_until(
            "the complaint", lambda: "its bulk load" in broker.log_file.read_text(), every_s=0.2
        )
        sink = sink_of(broker, "u")
        messages = tasks(sink)
        sink.commit([*messages])
        assert_loaded(broker, "u")


def test_a_file_that_is_lost_is_named_and_nothing_is_begun(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(broker, f"{topic}-before")  # So there is a table of events.
    sink = sink_of(broker, topic)
    messages = tasks(sink)
    lost = messages[0].files[0]
    create = admin.Admin.create_topic

    def lose(*arguments: Any, **named: Any) -> Any:
        (broker.lake / "topics" / topic / lost.path(sink.plan.load)).unlink()
        return create(*arguments, **named)

    monkeypatch.setattr(admin.Admin, "create_topic", lose)
    monkeypatch.setattr("kafka_ds.sink.load.LoadSink.wait_for_rows", die)
    with pytest.raises(ProcessDied):
        sink.commit([*messages])
    said = f"{lost.path(sink.plan.load)} of its bulk load is not in the lake"
    wait_until("the complaint", lambda: said in broker.log_file.read_text(), every_s=0.2)
    events = RemoteLogEvents(open_store(str(broker.lake)))
    assert not [each for each in events.follow() if each.topic == topic]
