"""Shell: the configuration of a broker: its declared settings, read from a file and from the command line.

Rules of this file: a key that is unknown, ill-typed, out of bounds or not honoured raises ConfigError, whose one
line names the key and the place. Overrides win over the file, the file over the defaults. Where Apache Kafka has
the setting, the name, type and bounds are its own; defaults that differ are marked `ours`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.listeners import Endpoint, check_protocols, parse_endpoints
from broker.properties import PropertiesError, parse_properties
from broker.settings import (
    ConfigError,
    Setting,
    Value,
    attribute_of,
    boolean,
    broker_synonyms,
    i16,
    i32,
    i64,
    settings_of,
    string,
    strings,
)
from broker.topic_config import DAY_MS, TopicConfig

if TYPE_CHECKING:
    from broker.log.config import LogConfig

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker; `topic` holds what its topics have where they say nothing of their own.

    `origins` tells of each setting that was given where it was given, for DescribeConfigs and error texts.
    `changes` are those made while it runs, by resource name (`broker.dynamic_config`), `started_topic` is what
    `topic` was before them.
    """

    # -- who it is ----------------------------------------------------------------------------------
    node_id: int = i32(1, "The number of this broker, unique in its cluster.", low=0, ours=True)
    broker_rack: str | None = string(None, "The rack that this broker stands in, told to clients.")
    process_roles: tuple[str, ...] = strings(
        ("broker", "controller"),
        "What this process is: always both.",
        honours=("broker,controller",),
        ours=True,
    )

    # -- how it is reached --------------------------------------------------------------------------
    listeners: str = string(
        "PLAINTEXT://127.0.0.1:9092",
        "Where the broker listens: NAME://host:port, several with commas. No host means all addresses, "
        "port 0 any free one.",
        ours=True,
    )
    advertised_listeners: str | None = string(
        None, "What clients are told to connect to, by listener name; without it, the listeners."
    )
    listener_security_protocol_map: str = string(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The protocol of each listener name; only PLAINTEXT is served yet.",
    )
    metrics_port: int | None = i32(
        None,
        "The port on which Prometheus finds the metrics; without it none.",
        low=0,
        high=65535,
        ours=True,
    )
    connections_max_idle_ms: int = i64(
        600_000, "The time without a byte after which a connection is closed; -1 means never."
    )
    max_connections: int = i32(2**31 - 1, "How many connections the broker holds at once.", low=0)
    max_connections_per_ip: int = i32(
        2**31 - 1, "How many connections one address may hold at once.", low=0
    )
    socket_listen_backlog_size: int = i32(
        50, "How many connections may wait to be accepted.", low=1
    )
    socket_receive_buffer_bytes: int = i32(
        -1, "The size of a socket's receive buffer; -1 leaves it to the system.", low=-1, ours=True
    )
    socket_request_max_bytes: int = i32(100 * _MIB, "The largest request that is read.", low=1)
    socket_send_buffer_bytes: int = i32(
        -1, "The size of a socket's send buffer; -1 leaves it to the system.", low=-1, ours=True
    )

    # -- topics -------------------------------------------------------------------------------------
    auto_create_topics_enable: bool = boolean(
        True, "Whether a topic that a client asks for is created if it is not there."
    )
    default_replication_factor: int = i32(
        1, "The number of replicas of a topic that does not say.", low=1
    )
    delete_topic_enable: bool = boolean(True, "Whether topics may be deleted.")
    num_partitions: int = i32(1, "The number of partitions of a topic that does not say.", low=1)

    # -- log ----------------------------------------------------------------------------------------
    log_dir: str | None = string(None, "The directory of the logs, where log.dirs is not given.")
    log_dirs: tuple[str, ...] = strings(
        ("data/log",), "The directories of the logs, with commas.", ours=True
    )
    log_flush_offset_checkpoint_interval_ms: int = i32(
        60_000, "How often the recovery points are written.", low=0
    )
    log_flush_start_offset_checkpoint_interval_ms: int = i32(
        60_000, "How often the log start offsets are written.", low=0, honours=("60000",)
    )
    log_retention_check_interval_ms: int = i64(
        300_000, "How often old segments are looked for.", low=1
    )
    producer_id_expiration_ms: int = i32(
        DAY_MS, "How long an idempotent producer is remembered after its last batch.", low=1
    )
    replica_high_watermark_checkpoint_interval_ms: int = i64(
        5_000, "How often the high watermarks are written."
    )
    fetch_max_bytes: int = i32(
        55 * _MIB, "The most that one Fetch response carries, whatever was asked.", low=1024
    )

    # -- groups -------------------------------------------------------------------------------------
    group_initial_rebalance_delay_ms: int = i32(
        3_000, "How long a group that forms waits for more members.", low=0
    )
    group_max_session_timeout_ms: int = i32(
        1_800_000, "The longest session that a member may ask for."
    )
    group_max_size: int = i32(2**31 - 1, "How many members a group may have.", low=1)
    group_min_session_timeout_ms: int = i32(
        6_000, "The shortest session that a member may ask for."
    )
    offset_metadata_max_bytes: int = i32(
        4096, "How much a client may say with an offset that it commits."
    )
    offsets_commit_timeout_ms: int = i32(
        5_000,
        "How long a group's records may take to be replicated before the client is told.",
        low=1,
    )
    offsets_retention_check_interval_ms: int = i64(
        600_000, "How often old offsets are looked for.", low=1
    )
    offsets_retention_minutes: int = i32(
        7 * 24 * 60, "How long offsets are kept that no member of their group uses.", low=1
    )
    offsets_topic_num_partitions: int = i32(
        50, "The partitions of __consumer_offsets when it is created.", low=1
    )
    offsets_topic_replication_factor: int = i16(
        3, "The most replicas of __consumer_offsets when it is created.", low=1
    )
    offsets_topic_segment_bytes: int = i32(
        100 * _MIB, "The segment.bytes of __consumer_offsets when it is created.", low=1 << 20
    )

    # -- transactions -------------------------------------------------------------------------------
    transaction_max_timeout_ms: int = i32(
        900_000, "The longest time that a transaction may ask to stay open.", low=1
    )
    transactional_id_expiration_ms: int = i32(
        7 * DAY_MS, "How long a transactional id is remembered that nobody uses.", low=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = i32(
        10_000, "How often transactions that are open for too long are looked for.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = i32(
        3_600_000, "How often transactional ids that nobody uses are looked for.", low=1
    )
    transaction_state_log_num_partitions: int = i32(
        50, "The partitions of __transaction_state when it is created.", low=1
    )
    transaction_state_log_replication_factor: int = i16(
        3, "The most replicas of __transaction_state when it is created.", low=1
    )
    transaction_state_log_min_isr: int = i32(
        2, "The min.insync.replicas of __transaction_state when it is created.", low=1
    )
    transaction_state_log_segment_bytes: int = i32(
        100 * _MIB, "The segment.bytes of __transaction_state when it is created.", low=1 << 20
    )

    # -- lake ---------------------------------------------------------------------------------------
    lake_uri: str = string("data/lake", "Where the Delta tables are: a folder.", ours=True)
    lake_max_lag_ms: int = i64(
        -1,
        "How long a record may wait for its way into the table, even if its segment is not closed; -1 means until "
        "then.",
        low=-1,
        ours=True,
    )
    lake_local_grace_ms: int = i64(
        60_000,
        "How long a segment stays on local disk after it is in the table, whatever the local retention.",
        low=0,
        ours=True,
    )
    lake_worker_idle_ms: int = i64(
        300_000,
        "How long the worker process stays without work; -1 means for good.",
        low=-1,
        ours=True,
    )
    lake_start_delay_ms: int = i64(
        1_000,
        "How long after the opening of a partition the lake is asked what it holds of it.",
        low=0,
        ours=True,
    )
    lake_copy_bytes: int = i64(
        64 * _MIB,
        "How many bytes of log one copy takes, unless a single segment holds more.",
        low=1,
        ours=True,
    )
    lake_file_bytes: int = i64(
        128 * _MIB, "About how many bytes of records one Parquet file holds.", low=1, ours=True
    )
    lake_checkpoint_interval: int = i32(
        100, "After how many commits a table gets a checkpoint.", low=1, ours=True
    )
    lake_log_retention_ms: int = i64(
        7 * DAY_MS,
        "How long the history of a topic's table is kept, in whole days; held by the table from its creation on.",
        low=7 * DAY_MS,
        ours=True,
    )
    lake_reader_cache_bytes: int = i64(
        16 * _MIB, "How much memory the worker keeps for reading old offsets.", low=0, ours=True
    )
    remote_log_manager_task_interval_ms: int = i64(
        30_000, "How often it is looked for what to copy; closing a segment starts it too.", low=1
    )
    remote_log_reader_max_pending_tasks: int = i32(
        100, "How many reads of old offsets may wait.", low=1
    )
    remote_log_reader_threads: int = i32(
        2, "How many reads of old offsets run at once.", low=1, ours=True
    )
    remote_log_storage_system_enable: bool = boolean(
        True, "Whether topics are Delta tables at all; a topic may say otherwise.", ours=True
    )

    # -- not settings -------------------------------------------------------------------------------
    topic: TopicConfig = TopicConfig()
    origins: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    started_topic: TopicConfig | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens."""
        return parse_endpoints("listeners", self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """What clients are told; without a host or port where only the running broker knows."""
        if self.advertised_listeners is None:
            return self.endpoints
        return parse_endpoints("advertised.listeners", self.advertised_listeners)

    def values(self) -> Mapping[str, Value]:
        """All broker-wide settings by Kafka's name."""
        return {name: getattr(self, attribute_of(name)) for name in broker_settings()}


def broker_settings() -> Mapping[str, Setting]:
    """The settings that only a broker has, by name."""
    return settings_of(BrokerConfig)


def topic_settings() -> Mapping[str, Setting]:
    """The settings that a topic may have, by name."""
    return settings_of(TopicConfig)


@cache
def known_names() -> frozenset[str]:
    """Every name that may stand in a broker's configuration and is acted on."""
    return frozenset(broker_settings()) | frozenset(broker_synonyms(TopicConfig))


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """The configuration out of a properties file, if any, and `key=value` overrides."""
    given: dict[str, tuple[str, str]] = {}
    if path is not None:
        given.update(_read_file(Path(path)))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {override}: not of the form key=value")
        given[key.strip()] = (value.strip(), "--override")
    return from_given(given)


def from_given(given: Mapping[str, tuple[str, str]]) -> BrokerConfig:
    """The configuration out of (text, place) by name."""
    values: dict[str, Value] = {}
    for name, (text, place) in given.items():
        try:
            values[name] = _parse(name, text)
        except ConfigError as error:
            raise error.at(place) from None
    own = {name: value for name, value in values.items() if name in broker_settings()}
    if "log.dir" in own and "log.dirs" not in own and own["log.dir"]:
        own["log.dirs"] = (str(own["log.dir"]),)
    typed: dict[str, Any] = {attribute_of(name): value for name, value in own.items()}
    config = BrokerConfig(
        **typed,
        topic=_topic_defaults(values),
        origins={name: place for name, (_, place) in given.items()},
    )
    _check_whole(config)
    return config


def _read_file(path: Path) -> dict[str, tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        return {p.key: (p.value, f"{path.name} line {p.line}") for p in parse_properties(text)}
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except PropertiesError as error:
        raise ConfigError(str(error)).at(f"{path.name} line {error.line}") from None


def _parse(name: str, text: str) -> Value:
    setting = broker_settings().get(name)
    if setting is not None:
        return setting.parse(text)
    synonym = broker_synonyms(TopicConfig).get(name)
    if synonym is not None:
        return synonym[0].parse(text)
    return _parse_unserved(name, text)


def _parse_unserved(name: str, text: str) -> Value:
    """Takes a setting of Kafka's that is not honoured, if it stands at its default."""
    from broker.settings_unserved import unserved_setting

    setting = unserved_setting(name)
    if setting is None:
        raise ConfigError(f"{name} is no setting of this broker{_suggestion(name)}")
    return setting.parse(text)


def _suggestion(name: str) -> str:
    topic_setting = topic_settings().get(name)
    if topic_setting is not None:
        if topic_setting.synonyms:
            return f": for all topics it is called {topic_setting.synonyms[0][0]}"
        return ": it belongs to a topic"
    return _nearest(name, known_names())


def _nearest(name: str, names: Iterable[str]) -> str:
    import difflib  # 2 ms that only a mistake has to pay

    near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.7)
    return f": did you mean {' or '.join(near)}?" if near else ""


def _topic_defaults(values: Mapping[str, Value]) -> TopicConfig:
    """The defaults of all topics, from the broker-wide synonyms; the first one given wins."""
    chosen: dict[str, Any] = {}
    for setting in topic_settings().values():
        for name, factor in setting.synonyms:
            value = values.get(name)
            if value is not None:
                if factor != 1 and isinstance(value, int):
                    value = value * factor if value >= 0 else -1
                chosen[attribute_of(setting.name)] = value
                break
    if values.get("remote.log.storage.system.enable") is False:
        chosen["remote_storage_enable"] = False
    return TopicConfig(**chosen)


def _check_whole(config: BrokerConfig) -> None:
    """What no single setting can say about itself."""
    if not config.log_dirs or not all(config.log_dirs):
        raise ConfigError(f"log.dirs={','.join(config.log_dirs)} does not name a directory")
    if len(set(config.log_dirs)) != len(config.log_dirs):
        raise ConfigError(f"log.dirs={','.join(config.log_dirs)} names a directory twice")
    if not config.lake_uri:
        raise ConfigError("lake.uri is empty")
    if "://" in config.lake_uri and not config.lake_uri.startswith(("file://", "s3://")):
        raise ConfigError(f"lake.uri={config.lake_uri} is neither a folder nor an s3:// URI")
    listening = config.endpoints
    check_protocols(listening, config.listener_security_protocol_map)
    names = {endpoint.name for endpoint in listening}
    for endpoint in config.advertised_endpoints:
        if endpoint.name not in names:
            raise ConfigError(f"advertised.listeners names {endpoint.name}, which does not listen")
        if endpoint.host == "0.0.0.0":  # noqa: S104 - refused, not bound
            raise ConfigError(
                "advertised.listeners cannot be 0.0.0.0: clients need an address that they can reach"
            )
    _check_topic(config.topic)


def _check_topic(topic: TopicConfig) -> None:
    """Rules between the settings of one topic (KIP-405)."""
    if not topic.remote_storage_enable:
        return
    for local, total in (
        ("local_retention_ms", "retention_ms"),
        ("local_retention_bytes", "retention_bytes"),
    ):
        local_value, total_value = getattr(topic, local), getattr(topic, total)
        if local_value == -2 or total_value == -1:
            continue
        if local_value == -1 or local_value > total_value:
            raise ConfigError(
                f"{local.replace('_', '.')}={local_value} is more than "
                f"{total.replace('_', '.')}={total_value}"
            )


def topic_config(config: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The settings of a topic with these texts of its own; ConfigError names the one that is wrong."""
    parsed: dict[str, Any] = {}
    for name, text in overrides.items():
        setting = topic_settings().get(name)
        if setting is None:
            raise ConfigError(f"{name} is no setting of a topic{_nearest(name, topic_settings())}")
        parsed[attribute_of(name)] = setting.parse(text)
    topic = replace(config.topic, **parsed)
    if topic.remote_storage_enable and not config.remote_log_storage_system_enable:
        raise ConfigError(
            "remote.storage.enable=true: this broker has remote.log.storage.system.enable=false"
        )
    _check_topic(topic)
    return topic


def log_config(config: BrokerConfig, topic_overrides: Mapping[str, str]) -> LogConfig:
    """The same, as the value that a log takes."""
    from broker.log.config import LogConfig

    topic = topic_config(config, topic_overrides)
    taken: dict[str, Any] = {}
    for declared in fields(LogConfig):
        if hasattr(topic, declared.name):
            taken[declared.name] = getattr(topic, declared.name)
    taken["cleanup_policy"] = frozenset(topic.cleanup_policy)
    taken["producer_id_expiration_ms"] = config.producer_id_expiration_ms
    return LogConfig(**taken)
