"""The driver's part of a load: what it looks at before the topic is made, and what answers of brokers mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.metadata.events import ControllerChange
from broker.metadata.log import SNAPSHOT_INTERVAL, MetadataLog
from kafka_ds.client.admin import ClusterDescription, TopicPreview
from kafka_ds.client.cluster import OffsetAnswer
from kafka_ds.delta.store.uri import open_store
from kafka_ds.errors import BrokerTimeout, ConnectionRefused, LoadUnfinished, OptionError, TopicGone
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.load import LoadMessage, LoadSink, load_sink
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.topic.load import load_file
from tests.fakes.settings import load_plan
from tests.fakes.store import begin_lake

LOAD = "A" * 21 + "w"
ROWS = 10


class FakeBrokers:
    """A cluster and its AdminClient; a test sets what their calls do."""

    def __init__(self) -> None:
        self.created = 0
        self.create: Callable[[], Any] = lambda: None
        self.describe: Callable[[], Any] = dict
        self.ends: list[Exception | int] = [ROWS]
        self.setting: Callable[[], Any] = lambda: LOAD

    # -- as a cluster

    def __call__(self, _: object) -> FakeBrokers:
        return self

    def __enter__(self) -> FakeBrokers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partition_count(self, _: str) -> int:
        return 1

    def offsets(self, asked: dict[Any, int], *, read_committed: bool) -> dict[Any, OffsetAnswer]:
        said = self.ends.pop(0)
        if isinstance(said, Exception):
            raise said
        return {each: OffsetAnswer(offset=said, leader_epoch=0) for each in asked}

    def topic_setting(self, *_: str) -> str:
        said: str = self.setting()
        return said

    # -- as an AdminClient

    def create_topic(self, _: str, *, validate_only: bool = False, **__: Any) -> TopicPreview:
        if not validate_only:
            self.created += 1
            self.create()
        return TopicPreview(partition_count=1, settings={})

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id="mine", controller_id=1, brokers=[])

    def describe_topics(self, _: list[str]) -> Any:
        return self.describe()


def options(lake: Path) -> Any:
    return parse_sink_options(
        {"kafka.bootstrap.servers": "h:9092", "topic": "t", "load": "lake", "lake": str(lake)},
        stream=False,
    )


COLUMNS = check_columns({"value": "string"}, "t")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    begin_lake(tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> FakeBrokers:
    made = FakeBrokers()
    monkeypatch.setattr("kafka_ds.sink.load.Cluster", made)
    monkeypatch.setattr("kafka_ds.sink.load.Admin", made)
    return made


@pytest.fixture
def sink(lake: Path, brokers: FakeBrokers) -> LoadSink:
    plan = load_plan(LOAD, str(lake))
    given = options(lake)
    return LoadSink(given, given.load, COLUMNS, plan)


def written(sink: LoadSink) -> LoadMessage:
    return sink.write(iter([pa.record_batch({"value": ["x" * 50] * ROWS})]))


def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again(
    sink: LoadSink, brokers: FakeBrokers
) -> None:
    brokers.ends = [TopicGone("there is no topic t"), BrokerTimeout("no answer"), ROWS]
    sink.commit([written(sink)])
    assert not brokers.ends


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic t"),
        ConnectionRefused("h:9092"),
        BrokerTimeout("no answer"),
    ],
)
def test_after_the_topic_was_made_any_failure_leaves_the_load_open(
    sink: LoadSink, brokers: FakeBrokers, lake: Path, error: Exception
) -> None:
    brokers.ends = [error] * 10
    with pytest.raises(LoadUnfinished, match="topic t was created"):
        sink.commit([written(sink)])
    sink.abort([])
    assert (lake / load_file(LOAD)).exists()


def refused(code: ErrorCode) -> Callable[[], Any]:
    def refuse() -> None:
        raise KafkaError(code, "no")

    return refuse


def silent() -> None:
    raise BrokerTimeout("no answer")


def nobody() -> None:
    raise ConnectionRefused("h:9092")


@pytest.mark.parametrize(
    ("create", "setting"),
    [
        (silent, lambda: LOAD),
        (nobody, lambda: LOAD),
        (refused(ErrorCode.UNKNOWN_SERVER_ERROR), lambda: LOAD),
        (refused(ErrorCode.TOPIC_ALREADY_EXISTS), silent),
        (
            refused(ErrorCode.TOPIC_ALREADY_EXISTS),
            refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ),
    ],
)
def test_what_is_no_refusal_leaves_the_load_open(
    sink: LoadSink, brokers: FakeBrokers, lake: Path, create: Any, setting: Any
) -> None:
    brokers.create, brokers.setting = create, setting
    with pytest.raises(LoadUnfinished, match="whether topic t was created is unknown"):
        sink.commit([written(sink)])
    assert (lake / load_file(LOAD)).exists()


@pytest.mark.parametrize(
    ("code", "load"),
    [(ErrorCode.TOPIC_ALREADY_EXISTS, "another"), (ErrorCode.POLICY_VIOLATION, LOAD)],
)
def test_a_refusal_ends_the_load(
    sink: LoadSink, brokers: FakeBrokers, lake: Path, code: ErrorCode, load: str
) -> None:
    brokers.create, brokers.setting = refused(code), lambda: load
    with pytest.raises(OptionError):
        sink.commit([written(sink)])
    assert not (lake / load_file(LOAD)).exists()


def test_who_could_not_ask_for_the_end_is_told_at_once(lake: Path, brokers: FakeBrokers) -> None:
    brokers.describe = refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    given = options(lake)
    with pytest.raises(OptionError, match=r"topic t \(DESCRIBE\)"):
        load_sink(given, given.load, COLUMNS)


def test_the_lake_of_another_cluster_is_refused(
    lake: Path, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview = TopicPreview(partition_count=1, settings={"max.message.bytes": "9"})
    monkeypatch.setattr(brokers, "create_topic", lambda *_, **__: preview)
    given = options(lake)
    assert load_sink(given, given.load, COLUMNS).plan.topic == "t"  # Nobody knows whose it is.
    log = MetadataLog(open_store(str(lake)))
    image = log.load()
    for cluster_id in ("theirs", "mine"):
        log.found(cluster_id)  # The first stays.
        image = log.load()
        with pytest.raises(OptionError, match="belongs to cluster theirs, the brokers to .* mine"):
            load_sink(given, given.load, COLUMNS)
    for epoch in range(1, SNAPSHOT_INTERVAL + 2):
        log.commit(log.begin([ControllerChange(controller_id=1, controller_epoch=epoch)], image))
        image = log.load()
    assert log.last_snapshot_version > 0
    with pytest.raises(OptionError, match="belongs to cluster theirs"):
        load_sink(given, given.load, COLUMNS)


def test_a_lake_of_each_machine_is_noticed(
    sink: LoadSink, brokers: FakeBrokers, lake: Path, tmp_path: Path
) -> None:
    message = written(sink)
    (lake / "topics").rename(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="not one place for the driver and all executors"):
        sink.commit([message])
    assert not brokers.created and not (lake / load_file(LOAD)).exists()


def test_rows_that_retention_by_size_would_delete_are_refused(
    sink: LoadSink, brokers: FakeBrokers, lake: Path
) -> None:
    message = written(sink)
    (file,) = message.files
    sink.plan = replace(sink.plan, retention_bytes=file.log_bytes - 1)
    with pytest.raises(OptionError, match=r"retention\.bytes=.* by option 'topic\.retention"):
        sink.commit([message])
    assert not brokers.created and not (lake / load_file(LOAD)).exists()
    sink.plan = replace(sink.plan, retention_bytes=file.log_bytes)
    sink.commit([message])
