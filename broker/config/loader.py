"""Shell: reads a broker's configuration from a file and the command line.

Unknown, ill-typed, out-of-bounds and unsupported settings raise one ConfigError with a line for each, naming key and
place. Overrides win over the file, the file over the defaults. `broker.config.broker` and `broker.log.config` declare
the settings.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from broker.config.broker import BrokerConfig as BrokerConfig
from broker.config.group import bounds_of, group_settings
from broker.config.listeners import (
    JAAS,
    LISTENER_PREFIX,
    check_listener_value,
    listener_key,
    names_of,
)
from broker.config.properties import PropertiesError, parse_properties
from broker.config.unit_settings import GivenSettings, derived
from broker.config.unserved import unserved_settings
from broker.log.config import (
    CLUSTER_COLUMNS_MAX,
    DISKLESS_WITHOUT_TABLE,
    REMOTE_STORAGE_KEPT,
    LogConfig,
    unknown_topic_setting,
)
from kafka_ds.delta.store.store import NOT_SERVED, OBJECT_SCHEMES
from kafka_ds.process.settings import (
    ConfigError,
    Setting,
    SettingValue,
    attribute_of,
    broker_synonyms,
    settings_of,
    suggestion,
)
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.security.mechanisms import GSSAPI
from kafka_ds.topic.typed_columns import VARIANT, check_partition_columns, declared_columns

log = logging.getLogger(__name__)

ENABLED = "sasl.enabled.mechanisms"
# Settings of earlier Kafka releases, and what to do about them.
INSTEAD = {
    "broker.id": "use node.id={}",
    "zookeeper.connect": "remove it, there is no ZooKeeper",
    "controller.quorum.voters": "remove it, the lake is the quorum",
    "controller.quorum.bootstrap.servers": "remove it, the lake is the quorum",
}
# A word of an error that may be a setting.
_NAME = re.compile(r"[a-z][a-z0-9._-]*[a-z0-9]")
# An entry of *.replication.throttled.replicas.
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def broker_settings() -> Mapping[str, Setting]:
    """The broker settings that are not a topic's default, by name."""
    return settings_of(BrokerConfig)


def topic_settings() -> Mapping[str, Setting]:
    """The settings that a topic may have, by name."""
    return settings_of(LogConfig)


@cache
def known_names() -> frozenset[str]:
    """Every name in a broker's configuration that has an effect."""
    return frozenset(broker_settings()) | frozenset(broker_synonyms(LogConfig))


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """The configuration from an optional properties file and `key=value` overrides."""
    return from_given(read_given(path, overrides))


def read_given(path: str | Path | None, overrides: Sequence[str] = ()) -> GivenSettings:
    """What a properties file and overrides say. Raises ConfigError."""
    given: dict[str, tuple[str, str]] = {}
    if path is not None:
        given.update(_read_file(Path(path)))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {override}: not of the form key=value")
        given[key.strip()] = (value.strip(), "--override")
    return given


def brokers_of(
    given: GivenSettings, config: BrokerConfig, host: str
) -> list[tuple[GivenSettings, BrokerConfig]]:
    """Settings and configuration of each broker that `kafka-ds broker` runs; `config` is what `given` means.

    Raises ConfigError.
    """
    if config.broker_processes == 1:
        return [(given, config)]
    found = []
    for each in derived(given, config, host):
        try:
            found.append((each, from_given(each)))
        except ConfigError as error:
            which = f"node.id={each['node.id'][0]} of broker.processes={config.broker_processes}"
            raise ConfigError(
                "\n".join(f"{line} ({which})" for line in str(error).splitlines())
            ) from None
    return found


def from_given(given: GivenSettings) -> BrokerConfig:
    """The configuration from each setting's text and where it was given, by name. Raises ConfigError."""
    values: dict[str, SettingValue] = {}
    mistakes: dict[str, ConfigError] = {}
    for name, (text, place) in given.items():
        try:
            values[name] = _parse(name, text)
        except ConfigError as error:
            mistakes[name] = error.at(place)
    own = {name: value for name, value in values.items() if name in broker_settings()}
    if "log.dir" in own and "log.dirs" not in own and own["log.dir"]:
        own["log.dirs"] = (str(own["log.dir"]),)
    typed: dict[str, Any] = {attribute_of(name): value for name, value in own.items()}
    config = BrokerConfig(
        **typed,
        topic=_topic_defaults(values),
        listener_values={n: value for n, value in values.items() if listener_key(n) is not None},
        origins={name: place for name, (_, place) in given.items()},
    )
    _forget(config, mistakes)
    # All at once: a file written for another broker has several errors.
    lines = [*mistakes.values(), *_contradictions(config, is_whole=not mistakes)]
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(map(str, lines))))
    return config


def _forget(config: BrokerConfig, wrong: Iterable[str]) -> None:
    """Delete the values of wrong settings, so that no error is reported about their defaults."""
    for name in wrong:
        if listener_key(name) is not None:
            _delete(config, "listener_values")
        elif name in broker_settings():
            _delete(config, attribute_of("log.dirs" if name == "log.dir" else name))
        elif synonym := broker_synonyms(LogConfig).get(name):
            _delete(config.topic, attribute_of(synonym[2]))


def _delete(of: BrokerConfig | LogConfig, attribute: str) -> None:
    if hasattr(of, attribute):
        object.__delattr__(of, attribute)


def _read_file(path: Path) -> dict[str, tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        return {p.key: (p.value, f"{path.name} line {p.line}") for p in parse_properties(text)}
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except PropertiesError as error:
        raise ConfigError(str(error)).at(f"{path.name} line {error.line}") from None


def _parse(name: str, text: str) -> SettingValue:
    if not name:
        raise ConfigError("there is a value, but no name of a setting before it")
    key = listener_key(name)
    setting = broker_settings().get(name) if key is None else key.setting
    if setting is not None:
        value = setting.parse(text)
        check_listener_value(name, value)
        return value
    synonym = broker_synonyms(LogConfig).get(name)
    if synonym is not None:
        return synonym[0].parse(text)
    return _parse_unserved(name, text)


def _parse_unserved(name: str, text: str) -> SettingValue:
    """Accept an unsupported setting of Kafka at its default value only."""
    setting = unserved_settings().get(name)
    try:
        if setting is None:
            raise unknown_setting(name)
        return setting.parse(text)
    except ConfigError:
        if instead := INSTEAD.get(name):
            message = f"{name}={text} is not supported: {instead.format(text)}"
            raise ConfigError(message) from None
        raise


def unknown_setting(name: str) -> ConfigError:
    """The error for an unknown setting, with a suggestion."""
    return ConfigError(f"{name} is not a setting of this broker{_suggestion(name)}")


def _suggestion(name: str) -> str:
    topic_setting = topic_settings().get(name)
    if topic_setting is not None:
        if topic_setting.synonyms:
            return f": for all topics it is called {topic_setting.synonyms[0][0]}"
        return ": it belongs to a topic"
    if name.startswith(LISTENER_PREFIX):
        return (
            f": a listener's own are {LISTENER_PREFIX}<listener>.<setting>, in lower case, and a mechanism's "
            f"{LISTENER_PREFIX}<listener>.<mechanism>.<setting>"
        )
    return suggestion(name, known_names())


def _topic_defaults(values: Mapping[str, SettingValue]) -> LogConfig:
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
    return LogConfig(**chosen)


def _contradictions(config: BrokerConfig, *, is_whole: bool) -> Iterator[ConfigError]:
    """The first contradiction of each subject, except those that involve a wrong setting."""
    subjects: tuple[Callable[[BrokerConfig], None], ...] = (
        _check_places,
        _check_reach,
        _check_console,
        _check_read_only,
        _check_cluster,
        check_groups,
        check_cleaner,
        check_schema_registry,
        lambda whole: _check_topic(whole.topic),
    )
    for check in subjects:
        try:
            check(config)
        except ConfigError as error:
            yield placed(error, config, "listeners" if check is _check_reach else "")
        except AttributeError:
            # The check needs a setting that `_forget` has deleted.
            if is_whole:
                raise


def placed(error: ConfigError, config: BrokerConfig, otherwise: str = "") -> ConfigError:
    """The error with the places of the settings that it names; `otherwise` names one if none of these was given."""
    named: list[str] = []
    for word in _NAME.findall(str(error)):
        setting = topic_settings().get(word)
        named += [word, *(name for name, _ in (setting.synonyms if setting is not None else ()))]
    origins = config.origins
    given = [name for name in named if name in origins] or [otherwise]
    places = dict.fromkeys(origins[name] for name in given if name in origins)
    return error.at(" and ".join(places)) if places else error


def _check_places(config: BrokerConfig) -> None:
    if not config.log_dirs or not all(config.log_dirs):
        raise ConfigError(f"log.dirs={','.join(config.log_dirs)} does not name a directory")
    if len(set(config.log_dirs)) != len(config.log_dirs):
        raise ConfigError(f"log.dirs={','.join(config.log_dirs)} names a directory twice")
    check_cordoned(config)
    if not config.lake_uri:
        raise ConfigError("lake.uri is empty")
    scheme, separator, _ = config.lake_uri.partition("://")
    before, colon, rest = config.lake_uri.partition(":")
    if colon and not separator and before in OBJECT_SCHEMES:
        meant = f"{before}://{rest.lstrip('/')}"
        raise ConfigError(f"lake.uri={config.lake_uri} names a folder: write {meant}")
    if separator and scheme not in ("file", *OBJECT_SCHEMES):
        raise ConfigError(f"lake.uri={config.lake_uri} {NOT_SERVED}")


def _check_reach(config: BrokerConfig) -> None:
    listening = config.endpoints
    _check_listeners(config)
    names = {endpoint.name for endpoint in listening}
    for endpoint in config.advertised_endpoints:
        if endpoint.name not in names:
            raise ConfigError(f"advertised.listeners names {endpoint.name}, which does not listen")
        if endpoint.host == "0.0.0.0":  # noqa: S104 - refused, not bound
            raise ConfigError(
                "advertised.listeners cannot be 0.0.0.0: clients need an address that they can reach"
            )
    _ = config.super_principals


def _check_listeners(config: BrokerConfig) -> None:
    """Check the settings that the listeners' protocols need; files are checked when they are read."""
    names = {listener.lower() for listener in config.protocols}
    for name in config.listener_values:
        key = listener_key(name)
        if key is not None and key.listener not in names:
            raise ConfigError(f"{name}: listeners names no {key.listener}")
    for listener, protocol in config.protocols.items():
        if protocol.startswith("SASL") and not config.of_listener(listener, ENABLED):
            raise ConfigError(
                f"{ENABLED} is empty: clients of the listener {listener} could not authenticate"
            )
    if config.inter_broker_listener_name and config.security_inter_broker_protocol:
        raise ConfigError(
            "set only one of inter.broker.listener.name and security.inter.broker.protocol"
        )
    between = config.inter_broker_listener
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if not config.protocols.get(between, "").startswith("SASL"):
        return
    if mechanism is None or mechanism not in cast(
        "tuple[str, ...]", config.of_listener(between, ENABLED)
    ):
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={mechanism or ''} is not among {ENABLED} of {between}"
        )
    if config.of_listener(between, JAAS, mechanism) is None:
        raise ConfigError(
            f"{names_of(between, JAAS, mechanism)[0]} is not set: brokers need it to connect to each other"
        )


def _check_console(config: BrokerConfig) -> None:
    """The console must be as protected as the listeners."""
    port, host = config.console_port, config.console_host
    if port is None:
        return
    name = config.console_listener
    if name not in config.protocols:
        raise ConfigError(f"console.listener.name={name} is not among listeners")
    protocol = config.protocols[name]
    if protocol.startswith("SASL") and config.of_listener(name, ENABLED) == (GSSAPI,):
        raise ConfigError(
            f"console.listener.name={name}: a browser gives a password or a token, and {ENABLED} of {name} is {GSSAPI}"
        )
    is_open = set(config.protocols.values()) == {"PLAINTEXT"}
    if not is_open and not protocol.endswith("SSL") and not is_loopback(host):
        lacks = (
            "a password crosses the network in clear"
            if protocol.startswith("SASL")
            else f"the console has neither TLS nor passwords while listeners={config.listeners} are not all PLAINTEXT"
        )
        raise ConfigError(
            f"console.host={host}: by the listener {name} {lacks}, so it must be at a loopback address: set "
            "console.listener.name to a listener with TLS"
        )


def _check_read_only(config: BrokerConfig) -> None:
    """What a broker that only reads the lake cannot be."""
    if not config.lake_read_only:
        if config.lake_read_only_replicated:
            raise ConfigError("lake.read.only.replicated=true needs lake.read.only=true")
        return
    if config.console_port is not None:
        raise ConfigError("console.port: a broker with lake.read.only=true has no console")
    if config.broker_processes > 1:
        raise ConfigError(
            f"broker.processes={config.broker_processes}: a broker with lake.read.only=true is a process of its own"
        )
    if not config.remote_log_storage_system_enable:
        raise ConfigError(
            "remote.log.storage.system.enable=false: a broker with lake.read.only=true reads nothing but the lake"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address; of names only localhost is."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_cluster(config: BrokerConfig) -> None:
    """Check heartbeat, lease, retry and replication settings."""
    if config.inter_broker_listener not in {endpoint.name for endpoint in config.endpoints}:
        raise ConfigError(
            f"inter.broker.listener.name={config.inter_broker_listener} does not listen"
        )
    for name in ("broker.heartbeat.interval.ms", "controller.lease.interval.ms"):
        interval_ms = getattr(config, attribute_of(name))
        if interval_ms >= config.broker_session_timeout_ms:
            raise ConfigError(
                f"{name}={interval_ms} is not below "
                f"broker.session.timeout.ms={config.broker_session_timeout_ms}"
            )
    first_ms = config.remote_log_manager_task_retry_backoff_ms
    longest_ms = config.remote_log_manager_task_retry_backoff_max_ms
    if first_ms > longest_ms:
        raise ConfigError(
            f"remote.log.manager.task.retry.backoff.ms={first_ms} is above "
            f"remote.log.manager.task.retry.backoff.max.ms={longest_ms}"
        )
    wait_ms = config.replica_fetch_wait_max_ms
    # As in Kafka: else idle fetches time out, or followers fall out of the ISR.
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if wait_ms > (most_ms := getattr(config, attribute_of(name))):
            raise ConfigError(f"replica.fetch.wait.max.ms={wait_ms} is above {name}={most_ms}")


def check_cordoned(config: BrokerConfig) -> None:
    """Raises ConfigError, in Kafka's words, for cordoned directories that are not this broker's."""
    cordoned = config.cordoned_log_dirs
    if "*" in cordoned:
        if len(cordoned) > 1:
            raise ConfigError(
                "When cordoned.log.dirs is set to *, it must not contain other values"
            )
    elif missing := [each for each in cordoned if each not in config.log_dirs]:
        raise ConfigError(
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )


def check_cleaner(config: BrokerConfig) -> None:
    """Check the dedupe buffer of the cleaner threads, as in Kafka."""
    size, threads = (
        int(str(config.value_of(name)))
        for name in ("log.cleaner.dedupe.buffer.size", "log.cleaner.threads")
    )
    if size // threads <= 1 << 20:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size={size} must be more than 1 MiB for each of log.cleaner.threads={threads}"
        )


def check_schema_registry(config: BrokerConfig) -> None:
    """Check the registry's address, which clients are told. Raises ConfigError."""
    url = config.schema_registry_url
    if not url:
        return
    if "@" in url:
        raise ConfigError(
            "schema.registry.url may be read by all who describe brokers: leave out user and password, and give them "
            "to `kafka-ds pipelines` in KAFKA_DS_SCHEMA_REGISTRY_USER_INFO"
        )
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"schema.registry.url={url} does not begin with http:// or https://")


def check_groups(config: BrokerConfig) -> None:
    """Raises ConfigError for settings of groups that contradict each other."""
    for name, setting in group_settings().items():
        if not setting.synonyms:
            continue
        value = int(str(config.value_of(f"group.{name}")))
        least, most = bounds_of(name)
        if least is not None and value < int(str(config.value_of(least))):
            raise ConfigError(f"group.{name}={value} is less than {least}")
        if most is not None and value > int(str(config.value_of(most))):
            raise ConfigError(f"group.{name}={value} is more than {most}")
    for kind, interval_ms, session_ms in (
        (
            "consumer",
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_session_timeout_ms,
        ),
        ("share", config.group_share_heartbeat_interval_ms, config.group_share_session_timeout_ms),
        (
            "streams",
            config.group_streams_heartbeat_interval_ms,
            config.group_streams_session_timeout_ms,
        ),
    ):
        if interval_ms >= session_ms:
            raise ConfigError(
                f"group.{kind}.heartbeat.interval.ms is not below group.{kind}.session.timeout.ms"
            )
    if "classic" not in config.group_coordinator_rebalance_protocols:
        raise ConfigError(
            "group.coordinator.rebalance.protocols lacks classic, which cannot be disabled"
        )
    if not config.group_consumer_assignors:
        raise ConfigError("group.consumer.assignors is empty")
    if config.group_share_max_share_sessions < config.group_share_max_size:
        raise ConfigError(
            f"group.share.max.share.sessions={config.group_share_max_share_sessions} is less than "
            f"group.share.max.size={config.group_share_max_size}"
        )


def _check_topic(topic: LogConfig) -> None:
    """Check what bounds cannot express (KIP-390) and contradictions (KIP-405)."""
    if topic.compression_gzip_level == 0:
        raise ConfigError("compression.gzip.level=0 is neither -1 nor one of 1 to 9")
    for name, replicas in (
        ("follower.replication.throttled.replicas", topic.follower_replication_throttled_replicas),
        ("leader.replication.throttled.replicas", topic.leader_replication_throttled_replicas),
    ):
        if replicas != ("*",) and not all(map(_THROTTLED_REPLICA.fullmatch, replicas)):
            raise ConfigError(
                f"{name}={','.join(replicas)} is neither * nor partition:broker with commas"
            )
    if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={topic.min_compaction_lag_ms} is more than "
            f"max.compaction.lag.ms={topic.max_compaction_lag_ms}"
        )
    _check_typed_table(topic)
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
    _check_copies(topic)


def _check_typed_table(topic: LogConfig) -> None:
    if len(topic.lake_table_cluster_columns) > CLUSTER_COLUMNS_MAX:
        columns = ",".join(topic.lake_table_cluster_columns)
        raise ConfigError(
            f"lake.table.cluster.columns={columns} names more than {CLUSTER_COLUMNS_MAX} columns"
        )
    try:
        declared = declared_columns(topic.lake_table_columns)
    except ValueError as problem:
        raise ConfigError(f"lake.table.columns: {problem}") from None
    variants = [path[0] for path, kind in declared.items() if kind == VARIANT]
    if clustered := {*variants} & {*topic.lake_table_cluster_columns}:
        raise ConfigError(
            f"lake.table.cluster.columns: no table is clustered by a VARIANT, {clustered.pop()}"
        )
    partition_columns = topic.lake_table_partition_columns
    if partition_columns and topic.lake_table_cluster_columns:
        raise ConfigError(
            "lake.table.partition.columns and lake.table.cluster.columns: a Delta table has one of both"
        )
    is_json = topic.lake_table_value_format == "json"
    try:
        check_partition_columns(partition_columns, declared.items() if is_json else None)
    except ValueError as problem:
        raise ConfigError(f"lake.table.partition.columns: {problem}") from None


def _check_copies(topic: LogConfig) -> None:
    """Check the settings of copying against those of retention (KIP-950, KIP-1241)."""
    for what in ("ms", "bytes"):
        local = getattr(topic, f"local_retention_{what}")
        total = getattr(topic, f"retention_{what}")
        if topic.remote_log_copy_disable and local not in (-2, total):
            raise ConfigError(
                f"remote.log.copy.disable=true: local.retention.{what}={local} must be -2 or that of "
                f"retention.{what}, {total}, as nothing more is copied"
            )
        kept = total if local == -2 else local
        lag = getattr(topic, f"remote_copy_lag_{what}")
        if lag > kept >= 0:
            raise ConfigError(
                f"remote.copy.lag.{what}={lag} is more than the {kept} of the local retention, "
                "which waits for the copy"
            )


def _not_of_a_topic(name: str) -> ConfigError:
    """The error for a topic's setting that is unknown, or a broker's, with the remedy."""
    error = unknown_topic_setting(name)
    of_topic = broker_synonyms(LogConfig).get(name)
    if of_topic is not None:
        _, factor, meant = of_topic
        unit = "" if factor == 1 else " (in ms)"
        return ConfigError(
            f"{name} is not a setting of a topic: it is a broker setting; the topic setting is {meant}{unit}"
        )
    of_broker = broker_settings().get(name)
    if of_broker is None:
        near = suggestion(name, broker_settings()).replace("mean ", "mean the broker's ")
        return error if "did you mean" in str(error) else ConfigError(f"{error}{near}")
    remedy = ", put it in server.properties or --override, and start the broker again"
    if of_broker.changeable:
        remedy = ": kafka-configs --entity-type brokers"
    return ConfigError(f"{name} is not a setting of a topic: it is a broker setting{remedy}")


def topic_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The settings of a topic with these overrides. Raises ConfigError naming a wrong one."""
    parsed: dict[str, Any] = {}
    for name, text in overrides.items():
        if name == REMOTE_STORAGE_KEPT:
            continue
        setting = topic_settings().get(name)
        if setting is None:
            raise _not_of_a_topic(name)
        parsed[attribute_of(name)] = setting.parse(text)
    topic = replace(config.topic, **parsed)
    is_said = "remote_storage_enable" in parsed or REMOTE_STORAGE_KEPT in overrides
    if topic.is_compacted and not is_said:
        # The table would keep every record for ever, and compaction would wait for it: it must be set explicitly.
        topic = replace(topic, remote_storage_enable=False)
    if topic.remote_storage_enable and not config.remote_log_storage_system_enable:
        raise ConfigError(
            "remote.storage.enable=true: this broker has remote.log.storage.system.enable=false"
        )
    _check_topic(topic)
    return topic


def check_new_topic(topic: LogConfig) -> None:
    """Check the settings of a new topic. Raises ConfigError."""
    if topic.lake_diskless and not topic.copies_to_lake:
        raise ConfigError(DISKLESS_WITHOUT_TABLE)
    if topic.lake_diskless and topic.lake_load:
        raise ConfigError(
            "lake.load: a diskless topic (lake.diskless=true) cannot begin with a load"
        )
    if not topic.lake_load:
        return
    try:
        uuid_from_text(topic.lake_load)
    except ValueError:
        raise ConfigError(f"lake.load={topic.lake_load} is not the id of a load") from None
    if not topic.copies_to_lake:
        raise ConfigError(
            f"lake.load={topic.lake_load}: a load needs a Delta table, with remote.storage.enable=true and "
            "remote.log.copy.disable=false"
        )


# The cache is cleared beyond so many distinct sets of topic settings.
LOG_CONFIGS_MAX = 1_000


class LogConfigs:
    """Caches LogConfig values: thousands of partitions share those of a few topics."""

    def __init__(self) -> None:
        self._config: BrokerConfig | None = None
        # Unknown settings that were logged.
        self._unknown: set[str] = set()
        self._made: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def of(self, config: BrokerConfig, topic_overrides: Mapping[str, str]) -> LogConfig:
        """The cached result of `topic_config`."""
        if config is not self._config or len(self._made) >= LOG_CONFIGS_MAX:
            self._config, self._made = config, {}
        key = frozenset(topic_overrides.items())
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = topic_config(config, topic_overrides)
        return made

    def committed(self, config: BrokerConfig, topic_overrides: Mapping[str, str]) -> LogConfig:
        """The same for settings in the metadata; as in Kafka those of a later release are ignored.

        During a rolling upgrade or downgrade another release may have validated them.
        """
        known = {*topic_settings(), REMOTE_STORAGE_KEPT}
        unknown = topic_overrides.keys() - known
        if not unknown:
            return self.of(config, topic_overrides)
        if not unknown <= self._unknown:
            self._unknown |= unknown
            log.warning("ignoring settings that this release does not know: %s", sorted(unknown))
        return self.of(config, {k: text for k, text in topic_overrides.items() if k in known})
