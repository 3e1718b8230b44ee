"""Shell: `kafka-ds adopt`: takes over the data directories of an Apache Kafka broker in place.

It changes only `log-start-offset-checkpoint`, to the start of a tiered log here; adds `partition.metadata` to logs from
before Kafka 2.8; and writes a mark (`broker.adoption.mark`). Old message formats are converted at the first start. The
directories are locked, so a running Kafka is noticed. The metadata are one commit, the first of the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from broker.adoption.broker_settings import adopted_changes
from broker.adoption.kafka_dirs import Track, look
from broker.adoption.mark import mark_adopted
from broker.adoption.plan import AdoptionPlan, FoundDirectory, FoundLog, join, plan
from broker.config.dynamic import with_changes
from broker.config.loader import BrokerConfig, topic_config
from broker.lake_store import reason, store_of
from broker.log.directories.directory import LogDirectory
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.commit import Conflict, FateUnknown, NotCommitted
from kafka_ds.delta.store.store import Store
from kafka_ds.process.seams import Disk
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import encode_partition_metadata
from kafka_ds.segments.files import replace as replace_file
from kafka_ds.topic.names import CLUSTER_METADATA, REMOTE_LOG_METADATA, TOPICS

COMMITS_MAX = 3
TABLES_SHOWN_MAX = 10


def parse_topic_configs(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse `topic:key=value` arguments. Raises ConfigError."""
    configs: dict[str, dict[str, str]] = {}
    for text in given:
        topic, colon, setting = text.partition(":")
        name, equals, value = setting.partition("=")
        if not (colon and equals and topic and name):
            raise ConfigError(f"--topic-config {text}: not of the form topic:key=value")
        configs.setdefault(topic, {})[name] = value
    return configs


def adopt(
    config: BrokerConfig,
    disk: Disk,
    open_lake: Callable[[str], Store],
    say: Callable[[str], object],
    *,
    topic_configs: Mapping[str, Mapping[str, str]],
    metadata_log_dir: str | None = None,
    track: Track,
    dry_run: bool = False,
) -> None:
    """Adopt `log.dirs`, report what was found, and show the progress. Raises ConfigError if that is impossible."""
    with ExitStack() as stack:
        directories = [_locked(disk, path, stack) for path in config.log_dirs]
        try:
            found = look(disk, config.node_id, directories, metadata_log_dir, track)
            store = store_of(config.lake_uri, open_lake)
            metadata_log = MetadataLog(store)
            # `load` would create the table.
            exists = not dry_run or store.folders(CLUSTER_METADATA)
            image = metadata_log.load() if exists else MetadataImage()
            if image.cluster_id is None:
                _check_empty(store, config.lake_uri)
                planned = _planned(config, found, topic_configs)
            else:
                planned = join(found, image, config.lake_uri)
            for line in planned.lines:
                say(line)
            if dry_run:
                say("nothing was changed: --dry-run")
                return
            for log in track("adopting", planned.logs):
                _write_topic_id(disk, log, planned.topic_ids[log.topic])
            _write_log_starts(directories, planned.logs)
            mark_adopted(disk, [each.path for each in directories], config.lake_uri)
            if planned.events:
                _commit(metadata_log, image, planned)
        except OSError as error:
            raise ConfigError(f"log.dirs={','.join(config.log_dirs)}: {reason(error)}") from error
    say(f"cluster {planned.cluster_id}: broker {found.node_id} is adopted; start it")


def _planned(
    config: BrokerConfig, found: FoundDirectory, topic_configs: Mapping[str, Mapping[str, str]]
) -> AdoptionPlan:
    cluster = found.cluster
    kafkas = cluster.broker_configs if cluster else {}
    broker_configs, lines = adopted_changes(config, kafkas, cluster.brokers if cluster else ())
    # A topic's settings are validated with its future defaults.
    changed = with_changes(config, broker_configs)
    planned = plan(
        found,
        topic_configs,
        broker_configs=broker_configs,
        check_configs=lambda configs: topic_config(changed, configs),
        new_uuid=new_uuid,
    )
    return replace(planned, lines=(*lines, *planned.lines))


def _check_empty(store: Store, lake_uri: str) -> None:
    """Tables of an earlier attempt have the same topic ids: their rows would count as these logs'."""
    tables = [name for each in (TOPICS, REMOTE_LOG_METADATA) for name in store.folders(each)]
    if tables:
        raise ConfigError(
            f"lake.uri={lake_uri} contains tables ({', '.join(tables[:TABLES_SHOWN_MAX])}) but no cluster: adopt needs "
            "an empty lake"
        )


def _locked(disk: Disk, path: str, stack: ExitStack) -> LogDirectory:
    if not disk.exists(f"{path}/{names.META_PROPERTIES}"):
        raise ConfigError(
            f"log.dirs: {path} has no {names.META_PROPERTIES}: it is not a data directory of Apache Kafka"
        )
    directory = LogDirectory(disk, path)
    try:
        directory.acquire()
    except OSError as error:
        raise ConfigError(f"log.dirs: {reason(error)}") from error
    stack.callback(directory.release)
    return directory


def _commit(metadata_log: MetadataLog, image: MetadataImage, planned: AdoptionPlan) -> None:
    commit = metadata_log.begin(planned.events, image)
    for _ in range(COMMITS_MAX):
        try:
            metadata_log.commit(commit)
        except (Conflict, NotCommitted) as error:
            raise ConfigError(f"lake.uri: {error}") from None
        except (FateUnknown, OSError):
            continue
        return
    raise ConfigError("lake.uri: the outcome of the write is unknown: run the command again")


def _write_topic_id(disk: Disk, log: FoundLog, topic_id: bytes) -> None:
    if log.topic_id == NO_UUID:
        path = f"{log.folder}/{names.PARTITION_METADATA}"
        replace_file(disk, path, encode_partition_metadata(topic_id), durable=True)


def _write_log_starts(directories: Sequence[LogDirectory], logs: Sequence[FoundLog]) -> None:
    for directory in directories:
        starts = directory.read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT)
        for log in logs:
            if log.folder.startswith(f"{directory.path}/"):
                starts[TopicPartition(log.topic, log.partition)] = log.start_offset
        directory.checkpoint(names.LOG_START_OFFSET_CHECKPOINT, starts)()
