"""Pure: the settings of a topic and of its logs, with the broker-wide settings that give them their defaults.

Declarations, in the order of Kafka's documentation, and what follows from several of them; names, types, defaults and
bounds are Kafka's unless the sentence says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_ds.process.settings import (
    MAX_LONG,
    ConfigError,
    boolean,
    double,
    i32,
    i64,
    settings_of,
    string,
    strings,
    suggestion,
)

UNLIMITED = MAX_LONG
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
# Beside a topic's own settings: it was a table when it became compacted, and remains one. The controller records it;
# clients see no such setting.
REMOTE_STORAGE_KEPT = "remote.storage.kept"
# Nothing but a copy ever takes its records out of the write-ahead logs.
DISKLESS_WITHOUT_TABLE = (
    "lake.diskless=true: a diskless topic is a Delta table, with remote.storage.enable=true and "
    "remote.log.copy.disable=false"
)
# Of typed tables.
_FORMATS = ("none", "json", "avro", "protobuf", "string")
# Delta's bound.
CLUSTER_COLUMNS_MAX = 4
# Kafka's: what its broker could allocate at all.
NO_DECOMPRESSED_LIMIT = 2**31 - 9
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _of(name: str, *more: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return ((name, 1), *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one topic: its own, or else the broker's, or else Kafka's defaults."""

    cleanup_policy: tuple[str, ...] = strings(
        ("delete",),
        "What happens to old segments: delete them, or compact them by key.",
        choices=("compact", "delete"),
        synonyms=_of("log.cleanup.policy"),
    )
    compression_gzip_level: int = i32(
        -1,
        "The gzip level of batches that the broker compresses: 1 to 9, or -1 for a fast one that the broker chooses.",
        low=-1,
        high=9,
        synonyms=_of("compression.gzip.level"),
    )
    compression_lz4_level: int = i32(
        9,
        "The lz4 level of batches that the broker compresses; the default stands for the fastest.",
        low=1,
        high=17,
        synonyms=_of("compression.lz4.level"),
    )
    compression_type: str = string(
        "producer",
        "The codec of stored batches; producer keeps the one that the producer chose.",
        choices=_CODECS,
        synonyms=_of("compression.type"),
    )
    compression_zstd_level: int = i32(
        3,
        "The zstd level of batches that the broker compresses.",
        low=-131072,
        high=22,
        synonyms=_of("compression.zstd.level"),
    )
    delete_retention_ms: int = i64(
        DAY_MS,
        "How long compaction keeps tombstones.",
        low=0,
        synonyms=_of("log.cleaner.delete.retention.ms"),
    )
    errors_deadletterqueue_group_enable: bool = boolean(
        False, "Whether share groups may write their dead letters to this topic (KIP-1191)."
    )
    file_delete_delay_ms: int = i64(
        MINUTE_MS,
        "How long a deleted segment's files stay on disk under the name .deleted.",
        low=0,
        synonyms=_of("log.segment.delete.delay.ms"),
    )
    flush_messages: int = i64(
        MAX_LONG,
        "After how many records the log is flushed to disk.",
        low=1,
        synonyms=_of("log.flush.interval.messages"),
    )
    flush_ms: int = i64(
        MAX_LONG,
        "How long records may stay in memory before they are flushed to disk.",
        low=0,
        synonyms=_of("log.flush.interval.ms", ("log.flush.scheduler.interval.ms", 1)),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = strings(
        (),
        "Replicas that are throttled as followers: partition:broker, separated by commas, or * for all.",
    )
    index_interval_bytes: int = i32(
        4096,
        "About how many bytes of log lie between two entries of the offset index.",
        low=0,
        synonyms=_of("log.index.interval.bytes"),
    )
    lake_compacted_history_ms: int = i64(
        -1,
        "How long the table of a compacted topic keeps a record after a newer one of its key, if lake.table.mode is "
        "current and `kafka-ds pipelines run` keeps the typed table. -1: forever.",
        low=-1,
        ours=True,
    )
    lake_diskless: bool = boolean(
        False,
        "Whether the topic is diskless: its leaders put records into the lake before they acknowledge them, and it has "
        "no followers. A topic that exists may become diskless, or replicated again, if it is a table, not compacted.",
        ours=True,
    )
    lake_load: str = string(
        "",
        "The bulk load that the topic begins with: the id under which Spark has written its files to the lake. It is "
        "given when the topic is created, and stays.",
        ours=True,
    )
    lake_table_cluster_columns: tuple[str, ...] = strings(
        (),
        "The columns by which the typed table's files are clustered, at most four. It holds for a table that is made "
        "after it was set.",
        ours=True,
    )
    lake_table_columns: tuple[str, ...] = strings(
        (),
        "Columns of the typed table by fields of JSON, with a type each: BIGINT, DOUBLE, BOOLEAN, STRING, an ARRAY of "
        "one, or VARIANT, such as price DOUBLE,pos.lat DOUBLE. Without it the first value of a field decides. It holds "
        "for columns that the table does not have yet.",
        ours=True,
    )
    lake_table_envelope: str = string(
        "none",
        "What values of lake.table.value.format=json, avro or protobuf are wrapped in. Of Debezium's envelope the row "
        "after the change is taken, and a deletion is a record without a value.",
        choices=("none", "debezium"),
        ours=True,
    )
    lake_table_key_format: str = string(
        "none",
        "What keys are, in the typed table's column _key: bytes (none), or text (string and json; of avro and protobuf "
        "a record is JSON).",
        choices=_FORMATS,
        ours=True,
    )
    lake_table_mode: str = string(
        "append",
        "What the typed table holds: a row for each record (append), or for each key the newest one, unless that has "
        "no value (current).",
        choices=("append", "current"),
        ours=True,
    )
    lake_table_partition_columns: tuple[str, ...] = strings(
        (),
        "The columns by which the typed table is partitioned, at most four: fields whose columns have text, whole "
        "numbers or dates, _partition, _schema_id, or _date, the date of _timestamp in UTC. JSON's fields must have a "
        "type in lake.table.columns. It holds for a table that is made after it was set, and not together with "
        "lake.table.cluster.columns.",
        ours=True,
    )
    lake_table_retention_enable: bool = boolean(
        True,
        "Whether rows leave the typed table, within the hour, when retention or DeleteRecords takes their records.",
        ours=True,
    )
    lake_table_value_format: str = string(
        "none",
        "What values are. If it is not none, `kafka-ds pipelines run` keeps a typed table of the topic, "
        "`<lake.uri>/tables/<topic>`: with json, avro and protobuf it has a column for each field, with "
        "string a column value.",
        choices=_FORMATS,
        ours=True,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = strings(
        (),
        "Replicas whose leaders throttle what they send: partition:broker of the leader, separated by commas, or * "
        "for all.",
    )
    local_retention_bytes: int = i64(
        -2,
        "How many bytes of a partition stay on local disk once they are in the lake; -2 means the value of "
        "retention.bytes.",
        low=-2,
        synonyms=_of("log.local.retention.bytes"),
    )
    local_retention_ms: int = i64(
        -2,
        "How long records stay on local disk once they are in the lake; -2 means the value of retention.ms.",
        low=-2,
        synonyms=_of("log.local.retention.ms"),
    )
    max_compaction_lag_ms: int = i64(
        MAX_LONG,
        "The longest time that a record may stay uncompacted.",
        low=1,
        synonyms=_of("log.cleaner.max.compaction.lag.ms"),
    )
    max_decompressed_message_bytes: int = i32(
        NO_DECOMPRESSED_LIMIT,
        "The largest record, decompressed, that is accepted in a compressed batch.",
        low=1,
        high=NO_DECOMPRESSED_LIMIT,
        synonyms=_of("max.decompressed.message.bytes"),
    )
    max_message_bytes: int = i32(
        1_048_588,
        "The largest record batch that is accepted.",
        low=0,
        synonyms=_of("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = i64(
        HOUR_MS,
        "How far a record's timestamp may be ahead of the broker's clock.",
        low=0,
        synonyms=_of("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = i64(
        MAX_LONG,
        "How far a record's timestamp may be behind the broker's clock.",
        low=0,
        synonyms=_of("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = string(
        CREATE_TIME,
        "Whether a record's timestamp is set by the producer or is the time of the append.",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
        synonyms=_of("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        "The share of a log that must be uncompacted before it is compacted.",
        low=0,
        high=1,
        synonyms=_of("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = i64(
        0,
        "The shortest time that a record stays uncompacted.",
        low=0,
        synonyms=_of("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = i32(
        1,
        "How many replicas must be in sync for a write with acks=all to be accepted. With eligible leader replicas the "
        "cluster has one value: the first controller's file sets it, later `kafka-configs --entity-default`.",
        low=1,
        synonyms=_of("min.insync.replicas"),
    )
    preallocate: bool = boolean(
        False,
        "Whether a new segment's file is created at its full size.",
        synonyms=_of("log.preallocate"),
    )
    remote_copy_lag_bytes: int = i64(
        -1,
        "How many bytes of log must follow a rolled segment before it is copied to the lake, unless "
        "remote.copy.lag.ms releases it earlier. -1 means local.retention.bytes; 0 in either setting means that "
        "segments are copied at once.",
        low=-1,
        synonyms=_of("log.remote.copy.lag.bytes"),
    )
    remote_copy_lag_ms: int = i64(
        0,
        "How old a rolled segment's newest record must be before the segment is copied to the lake, unless "
        "remote.copy.lag.bytes releases it earlier. -1 means local.retention.ms; 0 in either setting means that "
        "segments are copied at once.",
        low=-1,
        synonyms=_of("log.remote.copy.lag.ms"),
    )
    remote_log_copy_disable: bool = boolean(
        False,
        "Whether copying to the lake is stopped; what is there can be read and expires by retention.",
    )
    remote_log_delete_on_disable: bool = boolean(
        False,
        "Whether turning remote.storage.enable off deletes the topic's rows from the lake. Without it, turning it "
        "off is refused.",
    )
    remote_storage_enable: bool = boolean(
        True,
        "Whether the topic is a Delta table. Kafka's default is false; here it is the value of "
        "remote.log.storage.system.enable, and false for compacted topics.",
        ours=True,
    )
    retention_bytes: int = i64(
        -1,
        "How many bytes of a partition are kept, on local disk and in the lake together; -1 means all.",
        synonyms=_of("log.retention.bytes"),
    )
    retention_ms: int = i64(
        7 * DAY_MS,
        "How long records are kept; -1 means for ever.",
        low=-1,
        synonyms=_of(
            "log.retention.ms",
            ("log.retention.minutes", MINUTE_MS),
            ("log.retention.hours", HOUR_MS),
        ),
    )
    segment_bytes: int = i32(
        1 << 30,
        "The size at which a segment is rolled: it is closed for writing and a new one begins.",
        low=1 << 20,
        synonyms=_of("log.segment.bytes"),
    )
    segment_index_bytes: int = i32(
        10 << 20,
        "The largest size of an index file; a segment is rolled when one of its indexes is full.",
        low=4,
        synonyms=_of("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = i64(
        0,
        "How much earlier than after segment.ms a segment may be rolled. The amount differs between logs, so that "
        "they do not all roll at once.",
        low=0,
        synonyms=_of("log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)),
    )
    segment_ms: int = i64(
        7 * DAY_MS,
        "The age at which a segment is rolled even if it is not full.",
        low=1,
        synonyms=_of("log.roll.ms", ("log.roll.hours", HOUR_MS)),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Whether a replica that is not in sync may become leader, at the price of lost records.",
        synonyms=_of("unclean.leader.election.enable"),
    )

    @property
    def is_compacted(self) -> bool:
        """Whether it keeps the last record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes_old(self) -> bool:
        """Whether time and size limits apply at all."""
        return "delete" in self.cleanup_policy

    @property
    def uses_log_append_time(self) -> bool:
        """Whether a record's timestamp is the time of the append."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def copies_to_lake(self) -> bool:
        """Whether records are copied to the lake; if not, retention is that of an untiered log (KIP-950)."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def moves_to_lake(self) -> bool:
        """Whether the log's oldest part is deleted from the disk because the lake has it.

        A compacted log stays: it has the last value of each key, its table all that was ever written.
        """
        return self.copies_to_lake and not self.is_compacted

    @property
    def lake_settings(self) -> tuple[bool, bool, bool]:
        """The settings that concern the lake."""
        return (
            self.remote_storage_enable,
            self.remote_log_copy_disable,
            self.remote_log_delete_on_disable,
        )

    @property
    def has_table(self) -> bool:
        """Whether the lake may hold rows of it: also when its copies have ended, until the last row is removed."""
        is_leaving = self.remote_log_delete_on_disable and not self.is_compacted
        return self.remote_storage_enable or is_leaving

    @property
    def effective_local_retention_ms(self) -> int:
        """The local time limit; the log's own if it is not tiered (KIP-405, KIP-950)."""
        own = self.local_retention_ms if self.moves_to_lake else -2
        return self.retention_ms if own == -2 else own

    @property
    def effective_local_retention_bytes(self) -> int:
        """The local size limit; the log's own if it is not tiered (KIP-405, KIP-950)."""
        own = self.local_retention_bytes if self.moves_to_lake else -2
        return self.retention_bytes if own == -2 else own


# Without slots: a broker's configuration inherits it beside another class that has some.
@dataclass(frozen=True, kw_only=True)
class LogManagerSettings:
    """The settings of a broker's log directories, which `broker.config.broker` inherits."""

    cordoned_log_dirs: tuple[str, ...] = strings(
        (),
        "The directories of log.dirs that get no new replicas, separated by commas; * means all. A broker without "
        "another directory gets none, and no replica moves into a cordoned one; what is there stays, and is served "
        "(KIP-1066).",
        changeable=True,
    )
    log_flush_offset_checkpoint_interval_ms: int = i32(
        60_000, "How often the recovery points are written to disk.", low=0
    )
    log_retention_check_interval_ms: int = i64(
        300_000, "How often logs are checked for segments to delete.", low=1
    )
    producer_id_expiration_check_interval_ms: int = i32(
        600_000,
        "How often states of producers are looked through for expired ones; internal in Apache Kafka.",
        low=1,
    )
    num_recovery_threads_per_data_dir: int = i32(
        2,
        "How many logs of each directory are opened at a time when the broker starts; a change counts from the next "
        "start.",
        low=1,
        changeable=True,
    )


def unknown_topic_setting(name: str) -> ConfigError:
    """The error for an unknown setting of a topic, with a suggestion."""
    return ConfigError(
        f"{name} is not a setting of a topic{suggestion(name, settings_of(LogConfig))}"
    )
