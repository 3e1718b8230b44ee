"""AlterConfigs and IncrementalAlterConfigs: what changes, in open logs and after a restart."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker import changeable
from broker.config.loader import broker_settings
from broker.handlers.configs import alteration as altering
from broker.handlers.configs.alteration import rules_of
from broker.log.config import LogConfig
from broker.metadata.image import MetadataImage
from kafka_ds.process.settings import MAX_LONG, attribute_of, broker_synonyms
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from tests.in_process import LISTENER, InProcess, batch_of, config_of, in_process
from tests.loops import in_loop
from tests.unit.handlers.config_requests import (
    APPEND,
    BROKER,
    CLIENT_METRICS,
    DEFAULT,
    DELETE,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    GROUP,
    OF_CLIENT_METRICS,
    OF_GROUP,
    SET,
    STATIC,
    SUBTRACT,
    TOPIC,
    Change,
    change,
    described,
    log_of,
    replace,
    resource,
)


@pytest.mark.parametrize("version", [0, 1])
@in_loop
async def test_a_topics_setting_reaches_its_open_log(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", retention_ms=5000)
        changes = (("max.message.bytes", SET, "90"), ("retention.ms", DELETE, None))
        answer = await change(broker, TOPIC, "t", *changes, version=version)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert log_of(broker, "t").config.max_message_bytes == 90
        assert log_of(broker, "t").config.retention_ms == 7 * 24 * 3_600_000
        refused = await broker.produce("t", batch_of([b"x" * 200]))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert broker.node.metadata.topics["t"].configs == {"max.message.bytes": "90"}


@in_loop
async def test_min_insync_replicas_counts_at_once_but_not_beyond_the_replicas(
    memory_path: Path,
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await change(broker, TOPIC, "t", ("min.insync.replicas", SET, "2"))
        leader = broker.node.replica_manager.get("t", 0).leader
        assert leader.min_insync_replicas == 2
        assert (await broker.produce("t", batch_of([b"a"]))).error_code == ErrorCode.NONE


@in_loop
async def test_what_was_changed_is_there_after_a_restart(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.create("u", retention_ms=7)
        await change(broker, TOPIC, "t", ("segment.ms", SET, "12345"))
        await change(broker, BROKER, "1", ("log.retention.ms", SET, "99"))
        await change(broker, BROKER, "", ("message.max.bytes", SET, "5000"))
    async with in_process(memory_path) as broker:
        config = log_of(broker, "t").config
        assert (config.segment_ms, config.retention_ms, config.max_message_bytes) == (
            12345, 99, 5000,
        )  # fmt: skip
        assert log_of(broker, "u").config.retention_ms == 7


@pytest.mark.parametrize("version", [0, 1, 2])
@in_loop
async def test_alter_configs_replaces_everything(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", retention_ms=5000, segment_ms=6000)
        answer = await replace(broker, "t", version, segment_ms="7000", flush_ms="10")
        assert answer.error_code == 0
        configs = broker.node.metadata.topics["t"].configs
        assert configs == {"segment.ms": "7000", "flush.ms": "10"}
        assert log_of(broker, "t").config.segment_ms == 7000
        wrong = await replace(broker, "t", version, segment_ms="soon")
        assert wrong.error_code == ErrorCode.INVALID_CONFIG
        assert "segment.ms" in wrong.error_message
        assert broker.node.metadata.topics["t"].configs == configs


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code", "says"),
    [
        (TOPIC, "t", [("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG, "retention.ms"),
        (TOPIC, "t", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG, "no.such"),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "APPEND"),
        (TOPIC, "t", [("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG, "SUBTRACT"),
        (TOPIC, "t", [("cleanup.policy", SUBTRACT, None)], ErrorCode.INVALID_REQUEST, "cleanup"),
        (TOPIC, "t", [("cleanup.policy", APPEND, "x")], ErrorCode.INVALID_CONFIG, "cleanup.policy"),
        (TOPIC, "t", [("flush.ms", SET, None)], ErrorCode.INVALID_REQUEST, "flush.ms"),
        (TOPIC, "t", [("flush.ms", 9, "1")], ErrorCode.INVALID_REQUEST, "9"),
        (
            TOPIC, "t", [("flush.ms", SET, "1"), ("flush.ms", SET, "2")],
            ErrorCode.INVALID_REQUEST, "flush.ms",
        ),
        (TOPIC, "none", [("flush.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none"),
        (TOPIC, "a/b", [("flush.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b"),
        (BROKER, "7", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST, "7"),
        (BROKER, "1", [("node.id", SET, "5")], ErrorCode.INVALID_CONFIG, "node.id cannot"),
        (BROKER, "1", [("log.roll.hours", SET, "5")], ErrorCode.INVALID_CONFIG, "log.roll.hours"),
        (BROKER, "1", [("nonsense", SET, "5")], ErrorCode.INVALID_CONFIG, "nonsense"),
        (BROKER, "", [("message.max.bytes", SET, "-1")], ErrorCode.INVALID_CONFIG, "message.max"),
        (
            BROKER, "1", [("leader.replication.throttled.rate", SET, "fast")],
            ErrorCode.INVALID_CONFIG, "leader.replication.throttled.rate",
        ),
        (
            TOPIC, "t", [("leader.replication.throttled.replicas", SET, "0:1,all")],
            ErrorCode.INVALID_CONFIG, "leader.replication.throttled.replicas=0:1,all",
        ),
        (64, "1", [("metrics", SET, "a")], ErrorCode.INVALID_REQUEST, "64"),
    ],
)  # fmt: skip
@in_loop
async def test_what_is_refused_changes_nothing(
    memory_path: Path, kind: int, name: str, changes: list[Change], code: ErrorCode, says: str
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        version = broker.node.metadata.version
        answer = await change(broker, kind, name, ("segment.ms", DELETE, None), *changes)
        assert answer.error_code == code
        assert says in answer.error_message
        assert broker.node.metadata.version == version


@in_loop
async def test_lists_grow_and_shrink(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        # What is there by default stays what is there: nothing is appended twice.
        assert (
            await change(broker, TOPIC, "t", ("cleanup.policy", APPEND, "delete"))
        ).error_code == 0
        assert (await described(broker, TOPIC, "t", "cleanup.policy")).value == "delete"
        key = "leader.replication.throttled.replicas"
        for operation, value, left in (
            (APPEND, "0:1", "0:1"),
            (APPEND, "1:1, 0:1", "0:1,1:1"),
            (SUBTRACT, "7:1", "0:1,1:1"),
            (SUBTRACT, "0:1", "1:1"),
            (APPEND, "2:1", "1:1,2:1"),
            (SUBTRACT, "2:1,1:1", ""),
        ):
            assert (await change(broker, TOPIC, "t", (key, operation, value))).error_code == 0
            assert (await described(broker, TOPIC, "t", key)).value == left
        assert (await change(broker, TOPIC, "t", (key, DELETE, None))).error_code == 0
        assert key not in broker.node.metadata.topics["t"].configs


@in_loop
async def test_a_list_shrinks_from_what_is_inherited(memory_path: Path) -> None:
    async with in_process(memory_path, log_cleanup_policy="compact,delete") as broker:
        await broker.create("t")
        answer = await change(broker, TOPIC, "t", ("cleanup.policy", SUBTRACT, "compact"))
        assert answer.error_code == 0, answer.error_message
        assert (await described(broker, TOPIC, "t", "cleanup.policy")).value == "delete"
        assert not log_of(broker, "t").config.is_compacted


@in_loop
async def test_validate_only_changes_nothing(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        right = await change(broker, TOPIC, "t", ("flush.ms", SET, "1"), only=True)
        wrong = await change(broker, TOPIC, "t", ("flush.ms", SET, "-1"), only=True)
        assert (right.error_code, wrong.error_code) == (0, ErrorCode.INVALID_CONFIG)
        assert broker.node.metadata.topics["t"].configs == {}


@in_loop
async def test_a_resource_twice(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        one = resource(TOPIC, "t", ("flush.ms", SET, "1"))
        request = IncrementalAlterConfigsRequest(resources=[one, one], validate_only=False)
        (answer,) = (await broker.ask(request, 1)).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_a_brokers_own_change_wins_over_that_for_all(memory_path: Path) -> None:
    async with in_process(memory_path, log_segment_bytes=3 << 20) as broker:
        await broker.create("t")
        await broker.create("own", segment_bytes=9 << 20)
        key = "log.segment.bytes"
        await change(broker, BROKER, "", (key, SET, str(4 << 20)))
        assert log_of(broker, "t").config.segment_bytes == 4 << 20
        await change(broker, BROKER, "1", (key, SET, str(5 << 20)))
        assert log_of(broker, "t").config.segment_bytes == 5 << 20
        assert log_of(broker, "own").config.segment_bytes == 9 << 20
        told = await described(broker, BROKER, "1", key)
        assert (told.value, told.config_source, told.read_only) == (
            str(5 << 20), DYNAMIC_BROKER, False,
        )  # fmt: skip
        assert [(s.source, s.value) for s in told.synonyms] == [
            (DYNAMIC_BROKER, str(5 << 20)),
            (DYNAMIC_DEFAULT, str(4 << 20)),
            (STATIC, str(3 << 20)),
            (DEFAULT, str(1 << 30)),
        ]
        topic = await described(broker, TOPIC, "t", "segment.bytes")
        assert (topic.value, topic.config_source) == (str(5 << 20), DYNAMIC_BROKER)
        shared = await described(broker, BROKER, "", key)
        assert (shared.value, shared.config_source) == (str(4 << 20), DYNAMIC_DEFAULT)
        await change(broker, BROKER, "1", (key, DELETE, None))
        await change(broker, BROKER, "", (key, DELETE, None))
        assert log_of(broker, "t").config.segment_bytes == 3 << 20
        assert (await described(broker, BROKER, "1", key)).config_source == STATIC


def test_a_broker_has_judged_what_it_was_asked_about_alone(memory_path: Path) -> None:
    """Two settings, each valid alone, but together they keep a broker from starting: the later one is refused."""
    config = config_of(memory_path)
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    image = MetadataImage()
    image.broker_configs["2"] = {least: "5000"}
    both = {"2": {least: "5000", most: "4000"}}
    rules_of(config, {"2": ({}, both["2"])}).check_broker(both, image)
    for asked in (({}, {most: "4000"}), ({most: "9"}, both["2"])):
        with pytest.raises(KafkaError, match="compaction"):
            rules_of(config, {"2": asked}).check_broker(both, image)
    # What another broker has, and what does not change, this one's file says nothing of.
    image.broker_configs["2"] = both["2"]
    rules_of(config).check_broker({**both, "3": {least: "1"}}, image)


@in_loop
async def test_what_one_broker_refuses_is_not_what_others_were_asked_about(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def validate_on_brokers(
        node: Any, changes: Any, concerned: list[str]
    ) -> dict[str, str | None]:
        asked.append({name: dict(own) for name, own in changes.items()})
        return {"1": None, "2": "not with its disk"} if "" in concerned else {"1": None}

    monkeypatch.setattr(altering, "validate_on_brokers", validate_on_brokers)
    key = "log.segment.bytes"
    async with in_process(memory_path) as broker:
        resources = [
            resource(BROKER, "", (key, SET, str(4 << 20))),
            resource(BROKER, "1", (key, SET, str(5 << 20))),
        ]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        of_all, own = (await broker.ask(request, 1)).responses
        assert of_all.error_message == "broker 2: not with its disk"
        assert own.error_code == ErrorCode.NONE, own
        assert [key in changes.get("", {}) for changes in asked] == [True, False]
        assert [changes["1"][key] for changes in asked] == [str(5 << 20)] * 2
        assert broker.node.metadata.broker_configs["1"] == {key: str(5 << 20)}


@in_loop
async def test_the_first_controller_sets_min_isr_for_the_cluster(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever leads and whoever controls go by it at once, and after a start with another file (KIP-966)."""
    key = "min.insync.replicas"
    async with in_process(memory_path) as broker:
        assert (await described(broker, BROKER, "1", key)).config_source == DYNAMIC_DEFAULT
        await broker.create("t")
        found = await described(broker, TOPIC, "t", key)
        assert (found.value, found.config_source) == ("1", DYNAMIC_DEFAULT)
    async with in_process(memory_path, **{key: 2}) as broker:
        found = await described(broker, TOPIC, "t", key)
        assert (found.value, found.config_source) == ("1", DYNAMIC_DEFAULT)
        assert log_of(broker, "t").config.min_insync_replicas == 1
        assert "min.insync.replicas=2 of" in caplog.text


@in_loop
async def test_throttles_are_set_while_it_runs(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        key = "leader.replication.throttled.rate"
        assert (await described(broker, BROKER, "1", key)).value == str(MAX_LONG)
        for name, rate in (("", "2000000"), ("1", "1000000")):
            assert not (await change(broker, BROKER, name, (key, SET, rate))).error_code
            assert broker.node.config.value_of(key) == int(rate)
        told = await described(broker, BROKER, "1", key)
        assert (told.value, told.config_source, told.read_only) == (
            "1000000",
            DYNAMIC_BROKER,
            False,
        )
        assert [(s.source, s.value) for s in told.synonyms] == [
            (DYNAMIC_BROKER, "1000000"),
            (DYNAMIC_DEFAULT, "2000000"),
            (DEFAULT, str(MAX_LONG)),
        ]
        assert (await described(broker, BROKER, "", key)).value == "2000000"
        for side in ("leader", "follower"):
            name = f"{side}.replication.throttled.replicas"
            for replicas in ("0:1,12:3", "*", ""):
                assert not (await change(broker, TOPIC, "t", (name, SET, replicas))).error_code
    async with in_process(memory_path) as broker:
        assert broker.node.config.value_of(key) == 1_000_000
        await change(broker, BROKER, "1", (key, DELETE, None))
        await change(broker, BROKER, "", (key, DELETE, None))
        assert broker.node.config.value_of(key) == MAX_LONG


@in_loop
async def test_no_limit_of_connections_keeps_a_broker_from_starting(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, good = "max.connections.per.ip.overrides", "127.0.0.9:3,[0:0:0:0:0:0:0:9]:4,localhost:7"
    async with in_process(memory_path) as broker:
        for bad in ("foo", "foo:", ":1", "a:1,b:x"):
            answer = await change(broker, BROKER, "", (key, SET, bad))
            assert answer.error_code == ErrorCode.INVALID_CONFIG, bad
        assert not (await change(broker, BROKER, "", (key, SET, good))).error_code
        limits = broker.owner.server.connections.limits
        assert limits.settings.of_host["127.0.0.9"] == 3
        assert limits.settings.of_host["::9"] == 4
        assert limits.settings.of_host["127.0.0.1"] == 7
        nobody = f"{good},nobody.invalid:1,{'x' * 70}.invalid:1"
        assert not (await change(broker, BROKER, "", (key, SET, nobody))).error_code
        assert "cannot resolve host nobody.invalid" in caplog.text
        # Whatever else goes wrong with them, the limits stay as they were.
        bad_config = dataclasses.replace(broker.node.config, changes={"": {key: "foo"}})
        await broker.owner.server.configure(bad_config)
        assert limits.settings.of_host["127.0.0.9"] == 3
        await broker.create("t")
    async with in_process(memory_path) as broker:
        assert broker.owner.server.connections.limits.settings.of_host["127.0.0.9"] == 3
        assert "t" in broker.node.metadata.topics


@in_loop
async def test_limits_of_connections_are_set_while_it_runs(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        limits = broker.owner.server.connections.limits
        assert all(limits.delay_s(LISTENER, 100.0) <= 0 for _ in range(100))
        for key, text in (
            ("max.connection.creation.rate", "2"),
            ("max.connections.per.ip", "2"),
            ("max.connections", "3"),
        ):
            assert not (await change(broker, BROKER, "", (key, SET, text))).error_code
        waits = [max(0.0, limits.delay_s(LISTENER, 200.0)) for _ in range(5)]
        assert waits == [0.0, 0.0, 0.0, 0.5, 1.0]
        refused = []
        for host in ("a", "a", "a", "b", "b"):
            refused.append(limits.refusal(host, LISTENER))
            if refused[-1] is None:
                limits.opened(host, LISTENER)
        of_address, of_all = "max.connections.per.ip=2 is reached", "max.connections=3 is reached"
        assert refused == [None, None, of_address, None, of_all]


# Each value is another than the default.
OF_TOPICS = """
compression.gzip.level=3 compression.lz4.level=7 compression.type=zstd compression.zstd.level=5
log.cleaner.delete.retention.ms=7 log.cleaner.max.compaction.lag.ms=7000000 log.cleaner.min.cleanable.ratio=0.25
log.cleaner.min.compaction.lag.ms=7 log.cleanup.policy=compact log.flush.interval.messages=7 log.flush.interval.ms=7
log.index.interval.bytes=77 log.index.size.max.bytes=7777 log.local.retention.bytes=7 log.local.retention.ms=7
log.message.timestamp.after.max.ms=7 log.message.timestamp.before.max.ms=7 log.message.timestamp.type=LogAppendTime
log.preallocate=true log.remote.copy.lag.bytes=7 log.remote.copy.lag.ms=7 log.retention.bytes=77777
log.retention.ms=777777 log.roll.jitter.ms=7 log.roll.ms=77777 log.segment.bytes=7777777 log.segment.delete.delay.ms=7
max.decompressed.message.bytes=77777777 message.max.bytes=7777 min.insync.replicas=2
unclean.leader.election.enable=true
"""


@in_loop
async def test_what_topics_inherit_reaches_their_open_logs(memory_path: Path) -> None:
    values = dict(each.split("=") for each in OF_TOPICS.split())
    assert values.keys() == {key for key in changeable() if key not in broker_settings()}
    async with in_process(memory_path) as broker:
        await broker.create("t")
        log = log_of(broker, "t")
        for key, text in values.items():
            setting, name = broker_synonyms(LogConfig)[key][0], attribute_of(changeable()[key].name)
            before = getattr(log.config, name)
            answer = await change(broker, BROKER, "", (key, SET, text))
            assert not answer.error_code, (key, answer.error_message)
            assert getattr(log.config, name) == setting.parse(text) != before, key
            await change(broker, BROKER, "", (key, DELETE, None))


@in_loop
async def test_what_all_topics_inherit_must_fit_what_one_has(memory_path: Path) -> None:
    settings = {"remote_log_storage_system_enable": "true", "lake_start_delay_ms": 600_000}
    async with in_process(memory_path, **settings) as broker:
        await broker.create("t", local_retention_ms=5000)
        answer = await change(broker, BROKER, "1", ("log.retention.ms", SET, "4000"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "topic t" in answer.error_message
        assert "local.retention.ms=5000" in answer.error_message


@in_loop
async def test_a_group_has_settings_of_its_own(memory_path: Path) -> None:
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    async with in_process(memory_path) as broker:
        assert (await change(broker, GROUP, "g", (session, SET, "50000"))).error_code == 0
        entry = await described(broker, GROUP, "g", session)
        assert (entry.value, entry.config_source) == ("50000", OF_GROUP)
        entry = await described(broker, GROUP, "g", interval)
        assert (entry.value, entry.config_source) == ("5000", DEFAULT)
        for name, key, value, code in (
            ("", session, "50000", ErrorCode.INVALID_REQUEST),
            ("g", session, "44999", ErrorCode.INVALID_CONFIG),
            ("g", session, "60001", ErrorCode.INVALID_CONFIG),
            ("g", interval, "15001", ErrorCode.INVALID_CONFIG),
            ("g", interval, "x", ErrorCode.INVALID_CONFIG),
            ("g", "consumer.assignment.interval.ms", "15001", ErrorCode.INVALID_CONFIG),
            ("g", "share.assignment.interval.ms", "-1", ErrorCode.INVALID_CONFIG),
            ("g", "streams.num.standby.replicas", "3", ErrorCode.INVALID_CONFIG),
            ("g", "streams.num.standby.replicas", "-1", ErrorCode.INVALID_CONFIG),
            ("g", "streams.assignment.interval.ms", "15001", ErrorCode.INVALID_CONFIG),
            ("g", "streams.session.timeout.ms", "44999", ErrorCode.INVALID_CONFIG),
            ("g", "share.delivery.count.limit", "11", ErrorCode.INVALID_CONFIG),
            ("g", "share.auto.offset.reset", "by_duration:1h", ErrorCode.INVALID_CONFIG),
            ("g", "share.isolation.level", "serializable", ErrorCode.INVALID_CONFIG),
        ):
            assert (await change(broker, GROUP, name, (key, SET, value))).error_code == code
        refused = await change(broker, GROUP, "g", (session, APPEND, "1"))
        assert refused.error_code == ErrorCode.INVALID_CONFIG
    async with in_process(memory_path) as broker:
        assert (await described(broker, GROUP, "g", session)).value == "50000", "after a restart"
        assert await resources(broker, GROUP) == [(GROUP, "g")]
        await change(broker, GROUP, "g", (session, DELETE, None))
        assert (await described(broker, GROUP, "g", session)).config_source == DEFAULT
        assert await resources(broker, GROUP) == []


@in_loop
async def test_a_group_has_what_the_broker_has_now(memory_path: Path) -> None:
    own, brokers = "consumer.assignment.interval.ms", "group.consumer.assignment.interval.ms"
    async with in_process(memory_path, group_consumer_assignment_interval_ms=500) as broker:
        for name, value in (("", "2000"), ("1", "3000")):
            assert (await change(broker, BROKER, name, (brokers, SET, value))).error_code == 0
        assert (await change(broker, GROUP, "g", (own, SET, "100"))).error_code == 0
        entry = await described(broker, GROUP, "g", own)
        assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
            (own, "100", OF_GROUP),
            (brokers, "3000", DYNAMIC_BROKER),
            (brokers, "2000", DYNAMIC_DEFAULT),
            (brokers, "500", STATIC),
            (brokers, "1000", DEFAULT),
        ]
        assert (await described(broker, GROUP, "another", own)).value == "3000"
        refused = await change(broker, BROKER, "1", (brokers, SET, "15001"))
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "group.consumer.max.assignment.interval.ms" in refused.error_message


@in_loop
async def test_a_subscription_of_client_metrics_is_its_settings(memory_path: Path) -> None:
    metrics, interval, match = "metrics", "interval.ms", "match"
    async with in_process(memory_path) as broker:
        one = "org.apache.kafka.producer.,x"
        answer = await change(
            broker, CLIENT_METRICS, "s", (metrics, SET, one), (match, SET, "client_id=a.*")
        )
        assert answer.error_code == 0
        entry = await described(broker, CLIENT_METRICS, "s", metrics)
        assert (entry.value, entry.config_source) == (one, OF_CLIENT_METRICS)
        entry = await described(broker, CLIENT_METRICS, "s", interval)
        assert (entry.value, entry.config_source) == ("300000", DEFAULT)
        for name, key, value, code in (
            ("", metrics, "*", ErrorCode.INVALID_REQUEST),
            ("s", "interval", "1000", ErrorCode.INVALID_REQUEST),
            ("s", interval, "99", ErrorCode.INVALID_REQUEST),
            ("s", interval, "3600001", ErrorCode.INVALID_REQUEST),
            ("s", interval, "x", ErrorCode.INVALID_CONFIG),
            ("s", match, "client_id", ErrorCode.INVALID_CONFIG),
            ("s", match, "client_id=a=b", ErrorCode.INVALID_CONFIG),
            ("s", match, "client_id=(", ErrorCode.INVALID_CONFIG),
            ("s", match, "host=a", ErrorCode.INVALID_CONFIG),
        ):
            assert (
                await change(broker, CLIENT_METRICS, name, (key, SET, value))
            ).error_code == code
        assert (await change(broker, CLIENT_METRICS, "s", (metrics, APPEND, "y"))).error_code == 0
    async with in_process(memory_path) as broker:
        entry = await described(broker, CLIENT_METRICS, "s", metrics)
        assert entry.value == f"{one},y", "after a restart"
        assert await resources(broker, CLIENT_METRICS) == [(CLIENT_METRICS, "s")]
        assert await resources(broker, version=0) == [(CLIENT_METRICS, "s")]
        await change(broker, CLIENT_METRICS, "s", (metrics, DELETE, None), (match, DELETE, None))
        assert await resources(broker, CLIENT_METRICS) == []


async def resources(broker: InProcess, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    answer = await broker.ask(ListConfigResourcesRequest(resource_types=list(kinds)), version)
    assert answer.error_code == ErrorCode.NONE
    return [(each.resource_type, each.resource_name) for each in answer.config_resources]


@in_loop
async def test_resources_with_settings_are_listed(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        assert await resources(broker) == [(8, "1"), (BROKER, "1"), (TOPIC, "t")]
        assert await resources(broker, TOPIC) == [(TOPIC, "t")]
        assert await resources(broker, version=0) == []
        answer = await broker.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 99]), 1)
        assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


@in_loop
async def test_the_cleaner_is_set_while_it_runs(memory_path: Path) -> None:
    backoff, threads = "log.cleaner.backoff.ms", "log.cleaner.threads"
    size = "log.cleaner.dedupe.buffer.size"
    values = {
        backoff: "77",
        size: str(64 << 20),
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.io.buffer.size": "1048576",
        "log.cleaner.io.max.bytes.per.second": "1000000.0",
        threads: "2",
        "message.max.bytes": "5000",
        "producer.id.expiration.ms": "60000",
    }
    async with in_process(memory_path) as broker:
        await broker.create("t")
        for name, text in values.items():
            answer = await change(broker, BROKER, "", (name, SET, text))
            assert not answer.error_code, answer.error_message
            told = await described(broker, BROKER, "1", name)
            assert (told.value, told.config_source, told.read_only) == (
                text,
                DYNAMIC_DEFAULT,
                False,
            )
        assert not (await change(broker, BROKER, "1", (backoff, SET, "99"))).error_code
        told = await described(broker, BROKER, "1", backoff)
        assert [(s.source, s.value) for s in told.synonyms] == [
            (DYNAMIC_BROKER, "99"), (DYNAMIC_DEFAULT, "77"), (DEFAULT, "15000"),
        ]  # fmt: skip
        assert broker.node.config.producer_id_expiration_ms == 60_000
        settings = broker.node.cleaner.settings
        assert (settings.log_cleaner_backoff_ms, settings.log_cleaner_threads) == (99, 2)
        for name, text, says in (
            (threads, "0", "below the minimum"),
            (threads, "5", "more than double the present value, 2"),
            ("num.replica.fetchers", "3", "more than double the present value, 1"),
            (backoff, "-1", "below the minimum"),
            (size, str(2 << 20), "more than 1 MiB for each"),
            ("log.cleaner.io.buffer.load.factor", "nan", "load.factor"),
            ("log.cleaner.enable", "false", "cannot be changed while the broker runs"),
            ("num.io.threads", "16", "not supported"),
        ):
            answer = await change(broker, BROKER, "", (name, SET, text))
            assert answer.error_code == ErrorCode.INVALID_CONFIG, name
            assert says in answer.error_message
        assert not (await change(broker, BROKER, "", (threads, SET, "4"))).error_code
        answer = await change(broker, BROKER, "", (threads, SET, "1"))
        assert "less than half of the present value, 4" in answer.error_message
    async with in_process(memory_path) as broker:
        settings = broker.node.cleaner.settings
        assert (settings.log_cleaner_backoff_ms, settings.log_cleaner_threads) == (99, 4)
        assert settings.keys_max == int((64 << 20) // 4 // 24 * 0.5)
