"""Pure: the settings of one log, as values; what each means, and its default, says `broker.config.topic`.

Rules of this file: names are Kafka's topic-level names with dots turned into underscores. The text that a user may
write for them is checked where it is read (`kafka_ds.process.settings`), not here.
"""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What may differ from topic to topic. -1 in a retention is no limit, -2 is "as the total"."""

    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    producer_id_expiration_ms: int
    remote_copy_lag_bytes: int
    remote_copy_lag_ms: int
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes_old(self) -> bool:
        """Whether time and size limits apply at all."""
        return "delete" in self.cleanup_policy

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def copies_to_lake(self) -> bool:
        """Whether records are copied to the lake; if not, retention is that of an untiered log (KIP-950)."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def moves_to_lake(self) -> bool:
        """Whether the log's oldest part leaves the disk because the lake has it.

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
        """Whether the lake may hold rows of it: also when its copies have ended, until the last row is gone."""
        is_leaving = self.remote_log_delete_on_disable and not self.is_compacted
        return self.remote_storage_enable or is_leaving

    @property
    def effective_local_retention_ms(self) -> int:
        """The local time limit; the log's own if nothing leaves for the lake (KIP-405, KIP-950)."""
        own = self.local_retention_ms if self.moves_to_lake else -2
        return self.retention_ms if own == -2 else own

    @property
    def effective_local_retention_bytes(self) -> int:
        """The local size limit; the log's own if nothing leaves for the lake (KIP-405, KIP-950)."""
        own = self.local_retention_bytes if self.moves_to_lake else -2
        return self.retention_bytes if own == -2 else own
