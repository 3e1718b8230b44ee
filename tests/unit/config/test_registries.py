"""Every setting and metric of Kafka's tiered storage (KIP-405): here under its name, or said why not."""

import pytest

import broker.broker_metrics
import broker.remote.remote_log_manager  # noqa: F401 - declares what it shows
from broker.config.broker import changeable
from broker.config.loader import known_names, topic_settings
from broker.config.unserved import unserved_settings
from broker.log.config import LogConfig
from broker.metrics.names import declared
from kafka_ds.process.settings import ConfigType, Setting, broker_synonyms

LONG_MAX = 2**63 - 1
# Name, type and default of Apache Kafka.
BROKER = {
    "log.local.retention.bytes": (ConfigType.LONG, -2),
    "log.local.retention.ms": (ConfigType.LONG, -2),
    "log.remote.copy.lag.bytes": (ConfigType.LONG, -1),
    "log.remote.copy.lag.ms": (ConfigType.LONG, 0),
    "remote.fetch.max.wait.ms": (ConfigType.INT, 500),
    "remote.list.offsets.request.timeout.ms": (ConfigType.LONG, 30_000),
    "remote.log.index.file.cache.total.size.bytes": (ConfigType.LONG, 1 << 30),
    "remote.log.index.file.cache.ttl.ms": (ConfigType.LONG, 900_000),
    "remote.log.manager.copier.thread.pool.size": (ConfigType.INT, 10),
    "remote.log.manager.copy.max.bytes.per.second": (ConfigType.LONG, LONG_MAX),
    "remote.log.manager.copy.quota.window.num": (ConfigType.INT, 11),
    "remote.log.manager.copy.quota.window.size.seconds": (ConfigType.INT, 1),
    "remote.log.manager.expiration.thread.pool.size": (ConfigType.INT, 10),
    "remote.log.manager.fetch.max.bytes.per.second": (ConfigType.LONG, LONG_MAX),
    "remote.log.manager.fetch.quota.window.num": (ConfigType.INT, 11),
    "remote.log.manager.fetch.quota.window.size.seconds": (ConfigType.INT, 1),
    "remote.log.manager.follower.thread.pool.size": (ConfigType.INT, 2),
    "remote.log.manager.task.interval.ms": (ConfigType.LONG, 30_000),
    "remote.log.manager.thread.pool.size": (ConfigType.INT, 2),
    "remote.log.metadata.custom.metadata.max.bytes": (ConfigType.INT, 128),
    "remote.log.metadata.manager.class.name": (
        ConfigType.STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
    ),
    "remote.log.metadata.manager.class.path": (ConfigType.STRING, None),
    "remote.log.metadata.manager.impl.prefix": (ConfigType.STRING, "rlmm.config."),
    "remote.log.metadata.manager.listener.name": (ConfigType.STRING, None),
    "remote.log.reader.max.pending.tasks": (ConfigType.INT, 100),
    "remote.log.reader.threads": (ConfigType.INT, 10),
    "remote.log.storage.manager.class.name": (ConfigType.STRING, None),
    "remote.log.storage.manager.class.path": (ConfigType.STRING, None),
    "remote.log.storage.manager.impl.prefix": (ConfigType.STRING, "rsm.config."),
    "remote.log.storage.system.enable": (ConfigType.BOOLEAN, False),
}
TOPIC = {
    "local.retention.bytes": (ConfigType.LONG, -2),
    "local.retention.ms": (ConfigType.LONG, -2),
    "remote.copy.lag.bytes": (ConfigType.LONG, -1),
    "remote.copy.lag.ms": (ConfigType.LONG, 0),
    "remote.log.copy.disable": (ConfigType.BOOLEAN, False),
    "remote.log.delete.on.disable": (ConfigType.BOOLEAN, False),
    "remote.storage.enable": (ConfigType.BOOLEAN, False),
}
# Of the manager of the metadata topic, given with a prefix: of a topic that is a table here.
OF_THE_METADATA_TOPIC = (
    "remote.log.metadata.consume.wait.ms",
    "remote.log.metadata.initialization.retry.interval.ms",
    "remote.log.metadata.initialization.retry.max.timeout.ms",
    "remote.log.metadata.topic.min.isr",
    "remote.log.metadata.topic.num.partitions",
    "remote.log.metadata.topic.replication.factor",
    "remote.log.metadata.topic.retention.ms",
)
# Those whose default differs on purpose; docs/reference/settings.md marks them.
OTHER_DEFAULTS = {
    "remote.log.reader.threads",
    "remote.log.storage.system.enable",
    "remote.storage.enable",
}
DYNAMIC = {
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.index.file.cache.total.size.bytes",
    "remote.log.reader.threads",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.fetch.max.bytes.per.second",
}

_TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
_MANAGER = "kafka.log.remote:type=RemoteLogManager,name="
_READERS = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="
METRICS = (
    *(
        f"{_TOPICS}{name}PerSec"
        for name in (
            "RemoteCopyBytes",
            "RemoteCopyRequests",
            "RemoteCopyErrors",
            "RemoteFetchBytes",
            "RemoteFetchRequests",
            "RemoteFetchErrors",
            "RemoteDeleteRequests",
            "RemoteDeleteErrors",
            "BuildRemoteLogAuxStateRequests",
            "BuildRemoteLogAuxStateErrors",
        )
    ),
    *(
        f"{_TOPICS}{name}"
        for name in (
            "RemoteCopyLagBytes",
            "RemoteCopyLagSegments",
            "RemoteDeleteLagBytes",
            "RemoteDeleteLagSegments",
            "RemoteLogMetadataCount",
            "RemoteLogSizeBytes",
            "RemoteLogSizeComputationTime",
        )
    ),
    f"{_MANAGER}RemoteLogManagerTasksAvgIdlePercent",
    f"{_MANAGER}RemoteLogReaderFetchRateAndTimeMs",
    f"{_READERS}RemoteLogReaderAvgIdlePercent",
    f"{_READERS}RemoteLogReaderTaskQueueSize",
    "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
    "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec",
    *(
        f"kafka.server:type=RemoteLogManager:remote-{what}-throttle-time-{part}"
        for what in ("copy", "fetch")
        for part in ("avg", "max")
    ),
)


def setting_of(name: str) -> Setting | None:
    synonym = broker_synonyms(LogConfig).get(name)
    if synonym is not None:
        return synonym[0]
    from broker.config.loader import broker_settings

    return broker_settings().get(name) or unserved_settings().get(name)


@pytest.mark.parametrize("name", [*BROKER, *TOPIC])
def test_a_setting_is_here_under_its_name(name: str) -> None:
    setting = topic_settings().get(name) if name in TOPIC else setting_of(name)
    assert setting is not None
    kind, default = {**BROKER, **TOPIC}[name]
    assert setting.kind is kind
    if name in OTHER_DEFAULTS:
        assert setting.ours and setting.default != default
    else:
        assert setting.default == default


def test_what_does_nothing_says_why() -> None:
    """Either it is acted on, whatever its value, or it is refused with a reason."""
    for name in BROKER:
        is_served = name in known_names()
        assert is_served != (name in unserved_settings()), name
        setting = setting_of(name)
        assert setting is not None
        assert (setting.honours is None) == is_served
    for name in TOPIC:
        assert topic_settings()[name].honours is None


def test_settings_of_the_metadata_topic_are_no_settings_here() -> None:
    """`__remote_log_metadata` is a Delta table: no partitions, no replicas, nothing to consume or to wait for."""
    assert [name for name in OF_THE_METADATA_TOPIC if setting_of(name) is not None] == []


def test_what_kafka_changes_while_it_runs_changes_here() -> None:
    assert set(changeable()) >= DYNAMIC


@pytest.mark.parametrize("bean", METRICS)
def test_a_metric_is_here_under_its_name(bean: str) -> None:
    assert bean in {metric.bean for metric in declared() if not metric.ours}
