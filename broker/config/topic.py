"""Pure: the settings of a topic, with the broker-wide settings that give them their defaults.

Rules of this file: declarations only, in the order of Kafka's documentation; names, types, defaults and bounds
are Kafka's unless the sentence says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.config.settings import MAX_LONG, boolean, double, i32, i64, string, strings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _of(name: str, *more: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return ((name, 1), *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic: its own, or else the broker's, or else Kafka's defaults."""

    cleanup_policy: tuple[str, ...] = strings(
        ("delete",),
        "What happens to old segments: delete, or compact by key.",
        choices=("compact", "delete"),
        synonyms=_of("log.cleanup.policy"),
    )
    compression_gzip_level: int = i32(
        -1,
        "The level at which the broker compresses with gzip: 1 to 9, or -1 for its choice.",
        low=-1,
        high=9,
        synonyms=_of("compression.gzip.level"),
    )
    compression_lz4_level: int = i32(
        9,
        "The level at which the broker compresses with lz4; the default stands for the fastest.",
        low=1,
        high=17,
        synonyms=_of("compression.lz4.level"),
    )
    compression_type: str = string(
        "producer",
        "The codec that batches are stored with; producer keeps what was sent.",
        choices=_CODECS,
        synonyms=_of("compression.type"),
    )
    compression_zstd_level: int = i32(
        3,
        "The level at which the broker compresses with zstd.",
        low=-131072,
        high=22,
        synonyms=_of("compression.zstd.level"),
    )
    delete_retention_ms: int = i64(
        DAY_MS,
        "How long compaction keeps the marks of deleted keys.",
        low=0,
        synonyms=_of("log.cleaner.delete.retention.ms"),
    )
    file_delete_delay_ms: int = i64(
        MINUTE_MS,
        "How long a deleted segment's files stay on disk under the name .deleted.",
        low=0,
        synonyms=_of("log.segment.delete.delay.ms"),
    )
    flush_messages: int = i64(
        MAX_LONG,
        "The number of records after which the log is flushed to disk.",
        low=1,
        synonyms=_of("log.flush.interval.messages"),
    )
    flush_ms: int = i64(
        MAX_LONG,
        "The time after which unflushed records are flushed to disk.",
        low=0,
        synonyms=_of("log.flush.interval.ms", ("log.flush.scheduler.interval.ms", 1)),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = strings(
        (), "Followers that are throttled: partition:broker with commas, or * for all."
    )
    index_interval_bytes: int = i32(
        4096,
        "About how many bytes lie between two entries of the offset index.",
        low=0,
        synonyms=_of("log.index.interval.bytes"),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = strings(
        (), "Leaders that throttle: partition:broker with commas, or * for all."
    )
    local_retention_bytes: int = i64(
        -2,
        "How many bytes of a partition stay on local disk once they are in the lake; -2 means retention.bytes.",
        low=-2,
        synonyms=_of("log.local.retention.bytes"),
    )
    local_retention_ms: int = i64(
        -2,
        "How long records stay on local disk once they are in the lake; -2 means retention.ms.",
        low=-2,
        synonyms=_of("log.local.retention.ms"),
    )
    max_compaction_lag_ms: int = i64(
        MAX_LONG,
        "The longest time that a record may escape compaction.",
        low=1,
        synonyms=_of("log.cleaner.max.compaction.lag.ms"),
    )
    max_message_bytes: int = i32(
        1_048_588,
        "The largest record batch that is taken.",
        low=0,
        synonyms=_of("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = i64(
        HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock.",
        low=0,
        synonyms=_of("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = i64(
        MAX_LONG,
        "How far a record's timestamp may lie behind the broker's clock.",
        low=0,
        synonyms=_of("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = string(
        "CreateTime",
        "Whether a record's timestamp is the producer's or the time of its append.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=_of("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        "The share of a log that must be uncompacted before compaction runs.",
        low=0,
        high=1,
        synonyms=_of("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = i64(
        0,
        "The shortest time that a record escapes compaction.",
        low=0,
        synonyms=_of("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = i32(
        1,
        "How many replicas must be in sync for a write with acks=all to be taken.",
        low=1,
        synonyms=_of("min.insync.replicas"),
    )
    preallocate: bool = boolean(
        False,
        "Whether a new segment's file is allocated at its full size.",
        synonyms=_of("log.preallocate"),
    )
    remote_copy_lag_bytes: int = i64(
        0,
        "How many bytes of log come after a closed segment before it is copied, unless it is old enough; 0 means none, "
        "-1 local.retention.bytes.",
        low=-1,
        synonyms=_of("log.remote.copy.lag.bytes"),
    )
    remote_copy_lag_ms: int = i64(
        0,
        "How old a closed segment's records are before it is copied, unless enough comes after it; 0 means copied at "
        "once, -1 local.retention.ms.",
        low=-1,
        synonyms=_of("log.remote.copy.lag.ms"),
    )
    remote_log_copy_disable: bool = boolean(
        False,
        "Whether nothing more is copied to the lake; what is there is read, and goes by retention.",
    )
    remote_log_delete_on_disable: bool = boolean(
        False,
        "Whether the topic's rows go when remote.storage.enable is turned off, which is refused without.",
    )
    remote_storage_enable: bool = boolean(
        True,
        "Whether the topic is a Delta table. Kafka's default is false; here it is the value of "
        "remote.log.storage.system.enable, and false for compacted topics, which are none.",
        ours=True,
    )
    retention_bytes: int = i64(
        -1,
        "How many bytes of a partition are kept, local and lake together; -1 means all.",
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
        "The size at which a segment is closed and a new one begun.",
        low=1 << 20,
        synonyms=_of("log.segment.bytes"),
    )
    segment_index_bytes: int = i32(
        10 << 20,
        "The largest size of an index file.",
        low=4,
        synonyms=_of("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = i64(
        0,
        "How much earlier than segment.ms a segment may be closed, by lot, so that not all close at once.",
        low=0,
        synonyms=_of("log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)),
    )
    segment_ms: int = i64(
        7 * DAY_MS,
        "The age at which a segment is closed even if it is not full.",
        low=1,
        synonyms=_of("log.roll.ms", ("log.roll.hours", HOUR_MS)),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Whether a replica that is not in sync may become the leader, losing records.",
        synonyms=_of("unclean.leader.election.enable"),
    )

    @property
    def copies_to_lake(self) -> bool:
        """As of `LogConfig`."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def has_table(self) -> bool:
        """As of `LogConfig`."""
        is_leaving = self.remote_log_delete_on_disable and "compact" not in self.cleanup_policy
        return self.remote_storage_enable or is_leaving
