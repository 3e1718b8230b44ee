"""Pure: the settings of a broker that concern the lake: where it is, what is copied, read and kept when.

Rules of this file: declarations only, a part of `broker.config.broker` that has a file of its own for its length. What
begins with `lake.` is ours, what begins with `remote.` is Apache Kafka's (KIP-405, KIP-956).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.config.settings import MAX_LONG, boolean, double, i32, i64, string
from broker.config.topic import DAY_MS

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """The settings of one broker's tier."""

    lake_uri: str = string(
        "data/lake", "Where the Delta tables are: a folder, or `s3://<bucket>/<prefix>`.", ours=True
    )
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
        128 * _MIB,
        "How many bytes of log one copy takes, unless a single segment holds more.",
        low=1,
        ours=True,
    )
    lake_copy_threads: int = i32(
        2,
        "How many threads turn what one copy takes into Parquet, each at least 16 MiB of it or a partition of its own.",
        low=1,
        ours=True,
    )
    lake_file_bytes: int = i64(
        128 * _MIB, "About how many bytes of records one Parquet file holds.", low=1, ours=True
    )
    lake_compression_level: int = i32(
        1,
        "How hard zstd works on what is copied into the lake; the higher, the fewer bytes, and the slower copies are.",
        low=1,
        high=22,
        ours=True,
    )
    lake_behind_compression_type: str = string(
        "snappy",
        "How copies are compressed while they do not keep up with producers: snappy takes little more than half of "
        "the CPU, and up to twice the room until files are merged, with zstd again.",
        choices=("snappy", "zstd"),
        ours=True,
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
    lake_offsets_interval_ms: int = i64(
        60_000,
        "How often a broker notes in the lake where its partitions and the groups that it coordinates are, if they "
        "have moved: what a restore, and SQL, know of them. -1: never.",
        low=-1,
        ours=True,
    )
    lake_maintenance_interval_ms: int = i64(
        300_000,
        "How often the tables of led partitions are looked at for small, badly laid and expired files; -1 means never.",
        low=-1,
        ours=True,
    )
    lake_maintenance_file_bytes: int = i64(
        128 * _MIB,
        "Up to how many bytes small files of a table are merged; small is an eighth of it.",
        low=8,
        ours=True,
    )
    lake_maintenance_min_files: int = i32(
        10, "How many small files in a row are merged.", low=2, ours=True
    )
    lake_maintenance_expired_ratio: float = double(
        0.5,
        "How much of a file has to lie below the log start before it is written anew without that; 0 means any of it.",
        low=0,
        ours=True,
    )
    lake_maintenance_compression_level: int = i32(
        9,
        "The same for files that are merged or laid anew, beside which nobody waits.",
        low=1,
        high=22,
        ours=True,
    )
    lake_reader_cache_bytes: int = i64(
        16 * _MIB, "How much memory the worker keeps for reading old offsets.", low=0, ours=True
    )

    # -- Kafka's settings of tiered storage ------------------------------------------------------
    remote_fetch_max_wait_ms: int = i32(
        500,
        "How long a Fetch waits for what lies in the lake before it answers without it.",
        low=1,
    )
    remote_list_offsets_request_timeout_ms: int = i64(
        30_000, "How long ListOffsets waits for the lake, unless the client says.", low=1
    )
    remote_log_index_file_cache_total_size_bytes: int = i64(
        1 << 30,
        "How many bytes of what was read out of the lake more than once are kept in the first log directory; 0 keeps "
        "nothing.",
        low=0,
        ours=True,
    )
    remote_log_index_file_cache_ttl_ms: int = i64(
        900_000, "After how long without a reader that goes; -1 means never.", low=-1
    )
    remote_log_manager_copy_max_bytes_per_second: int = i64(
        MAX_LONG, "How many bytes of log a second are copied into the lake; copies wait.", low=1
    )
    remote_log_manager_copy_quota_window_num: int = i32(
        11, "How many samples that rate is taken over.", low=1
    )
    remote_log_manager_copy_quota_window_size_seconds: int = i32(
        1, "How long one of these samples lasts.", low=1
    )
    remote_log_manager_fetch_max_bytes_per_second: int = i64(
        MAX_LONG,
        "How many bytes a second consumers get out of the lake; beyond it they get nothing of what is there alone.",
        low=1,
    )
    remote_log_manager_fetch_quota_window_num: int = i32(
        11, "How many samples that rate is taken over.", low=1
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = i32(
        1, "How long one of these samples lasts.", low=1
    )
    remote_log_manager_task_interval_ms: int = i64(
        30_000, "How often it is looked for what to copy; closing a segment starts it too.", low=1
    )
    remote_log_manager_task_retry_backoff_max_ms: int = i64(
        30_000,
        "How long the tier waits at most before it tries again what failed.",
        low=1,
        ours=True,
    )
    remote_log_manager_task_retry_backoff_ms: int = i64(
        500,
        "How long the tier waits before it tries again what failed; twice as long each time (KIP-405; Kafka has "
        "dropped it).",
        low=1,
        ours=True,
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
