"""Pure: the settings of a broker that concern the lake: where it is, what is copied, read and kept when.

Rules of this file: declarations, which `broker.config.broker` inherits; the broker hands them to its worker as they
are. What begins with `lake.` is ours, what begins with `remote.` is Apache Kafka's (KIP-405, KIP-956).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from kafka_ds.ipc.backoff import Backoff
from kafka_ds.process.settings import MAX_LONG, boolean, double, i32, i64, string, strings

_MIB = 1 << 20
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The settings of one broker's tier."""

    node_id: int = i32(1, "The id of this broker, unique in its cluster.", low=0, ours=True)
    log_dirs: tuple[str, ...] = strings(
        ("data/log",), "The log directories, separated by commas.", ours=True
    )
    lake_uri: str = string(
        "data/lake", "Where the Delta tables are: a folder, or `s3://<bucket>/<prefix>`.", ours=True
    )
    lake_max_lag_ms: int = i64(
        -1,
        "The longest time a record waits before it is in the table, even if its segment is still open; -1 means that "
        "only rolled segments are copied. Topics with remote.copy.lag.ms and remote.copy.lag.bytes copy rolled "
        "segments only.",
        low=-1,
        ours=True,
    )
    lake_local_grace_ms: int = i64(
        60_000,
        "How long a segment stays on local disk after it is in the table, even if local retention would delete it.",
        low=0,
        ours=True,
    )
    lake_worker_idle_ms: int = i64(
        300_000,
        "How long the worker process stays alive without work; -1 means it is never stopped. After brief work only, "
        "such as maintenance of a small table, it ends after five seconds at most.",
        low=-1,
        ours=True,
    )
    lake_start_delay_ms: int = i64(
        1_000,
        "How long after a partition with records is opened the broker asks the lake what it already holds of that "
        "partition.",
        low=0,
        ours=True,
    )
    lake_copy_bytes: int = i64(
        128 * _MIB,
        "The most bytes of log in one copy; a single larger segment is still copied whole.",
        low=1,
        ours=True,
    )
    lake_copy_threads: int = i32(
        2,
        "How many threads convert the segments of one copy to Parquet. A partition is split between threads only if "
        "each gets at least 16 MiB.",
        low=1,
        ours=True,
    )
    lake_file_bytes: int = i64(
        128 * _MIB,
        "The approximate size of a Parquet file, in bytes of records before compression.",
        low=1,
        ours=True,
    )
    lake_compression_level: int = i32(
        1,
        "The zstd level of the files that copies write; a higher level makes smaller files and slower copies.",
        low=1,
        high=22,
        ours=True,
    )
    lake_behind_compression_type: str = string(
        "snappy",
        "The codec of copies that cannot keep up with producers. snappy needs little more than half of the CPU, and "
        "up to twice the space until the files are merged and compressed with zstd again.",
        choices=("snappy", "zstd"),
        ours=True,
    )
    lake_checkpoint_interval: int = i32(
        100, "The number of commits between two checkpoints of a table.", low=1, ours=True
    )
    lake_log_retention_ms: int = i64(
        7 * _DAY_MS,
        "How long the history of a topic's table is kept, rounded up to whole days. A table gets this value when it "
        "is created and keeps it.",
        low=7 * _DAY_MS,
        ours=True,
    )
    lake_offsets_interval_ms: int = i64(
        60_000,
        "How often a broker writes the offsets of its partitions and of the groups that it coordinates to the lake, "
        "if they have changed. Restore and SQL read them from there. -1 means never.",
        low=-1,
        ours=True,
    )
    lake_maintenance_interval_ms: int = i64(
        300_000,
        "How often tables are checked for small files, badly sorted files and files with expired rows; -1 means "
        "never. Rows below a log start that has moved are looked for every five seconds, if this is not less.",
        low=-1,
        ours=True,
    )
    lake_maintenance_file_bytes: int = i64(
        128 * _MIB,
        "The size up to which small files of a table are merged. A file is small below an eighth of this.",
        low=8,
        ours=True,
    )
    lake_maintenance_min_files: int = i32(
        10,
        "How many consecutive small files are merged, even if together they are smaller than "
        "lake.maintenance.file.bytes.",
        low=2,
        ours=True,
    )
    lake_maintenance_expired_ratio: float = double(
        0.5,
        "The share of a file's offsets that must lie below the log start before the file is rewritten without them, "
        "if a file was rewritten for that lately; 0 means that one is enough. It delays only what retention expired, "
        "and by an hour at most.",
        low=0,
        ours=True,
    )
    lake_maintenance_compression_level: int = i32(
        9,
        "The zstd level of files that are merged or rewritten. It may be higher than lake.compression.level, because "
        "nobody waits for them.",
        low=1,
        high=22,
        ours=True,
    )
    lake_reader_cache_bytes: int = i64(
        16 * _MIB,
        "How much memory the worker uses to cache batches read from the lake for consumers of cold records.",
        low=0,
        ours=True,
    )

    # -- Kafka's settings of tiered storage ------------------------------------------------------
    remote_fetch_max_wait_ms: int = i32(
        500,
        "How long a Fetch waits for records from the lake before it is answered without them.",
        low=1,
        changeable=True,
    )
    remote_list_offsets_request_timeout_ms: int = i64(
        30_000,
        "How long ListOffsets waits for the lake if the request has no timeout of its own.",
        low=1,
        changeable=True,
    )
    remote_log_index_file_cache_total_size_bytes: int = i64(
        1 << 30,
        "The size of the disk cache, in the first log directory, of records that were read from the lake more than "
        "once; 0 turns it off.",
        low=0,
        ours=True,
        fixed="the worker process opens the cache when it starts",
    )
    remote_log_index_file_cache_ttl_ms: int = i64(
        900_000,
        "How long an entry of that cache may go unread before it is deleted; -1 means for ever.",
        low=-1,
    )
    remote_log_manager_copy_max_bytes_per_second: int = i64(
        MAX_LONG,
        "The most bytes of log per second that are copied into the lake; copies beyond this rate wait.",
        low=1,
        changeable=True,
    )
    remote_log_manager_copy_quota_window_num: int = i32(
        11, "The number of samples over which that rate is measured.", low=1
    )
    remote_log_manager_copy_quota_window_size_seconds: int = i32(
        1, "The length of one of these samples.", low=1
    )
    remote_log_manager_fetch_max_bytes_per_second: int = i64(
        MAX_LONG,
        "The most bytes per second that consumers read from the lake; beyond this rate a Fetch is answered without "
        "the records that only the lake has.",
        low=1,
        changeable=True,
    )
    remote_log_manager_fetch_quota_window_num: int = i32(
        11, "The number of samples over which that rate is measured.", low=1
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = i32(
        1, "The length of one of these samples.", low=1
    )
    remote_log_manager_task_interval_ms: int = i64(
        30_000,
        "How often the leader checks what to copy and what has expired; a segment that rolls is copied without "
        "waiting for this. Followers ask their leaders as often where the lake ends.",
        low=1,
    )
    remote_log_manager_task_retry_backoff_max_ms: int = i64(
        30_000,
        "The longest pause before the tier retries what failed.",
        low=1,
        ours=True,
    )
    remote_log_manager_task_retry_backoff_ms: int = i64(
        500,
        "The first pause before the tier retries what failed; it doubles with each failure (KIP-405; Kafka has "
        "dropped this setting).",
        low=1,
        ours=True,
    )
    remote_log_reader_max_pending_tasks: int = i32(
        100,
        "How many cold reads may wait; more are refused with a retriable error.",
        low=1,
    )
    remote_log_reader_threads: int = i32(
        2,
        "How many cold reads run at a time.",
        low=1,
        ours=True,
        fixed="the worker process starts its threads once",
    )
    remote_log_storage_system_enable: bool = boolean(
        True,
        "Whether this broker has a tier. If true, a topic is a Delta table unless it sets remote.storage.enable=false, "
        "or is compacted and does not set it to true; if false, no topic can be one.",
        ours=True,
    )

    def backoff(self) -> Backoff:
        """The back-off after consecutive failures of one thing."""
        return Backoff(
            self.remote_log_manager_task_retry_backoff_ms,
            self.remote_log_manager_task_retry_backoff_max_ms,
        )

    def worker_arguments(self) -> list[str]:
        """The settings as the worker process's arguments."""
        return [json.dumps(asdict(self))]

    @classmethod
    def from_worker_argument(cls, text: str) -> Self:
        """The settings from the worker's argument."""
        values = json.loads(text)
        return cls(**{**values, "log_dirs": tuple(values["log_dirs"])})
