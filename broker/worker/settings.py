"""Pure: the settings that the tier needs, as one value.

Rules of this file: a field is named after its setting, with the dots replaced. Defaults are the broker's. Nothing here
reads a file or an environment variable.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from broker.ipc.backoff import Backoff

UNBOUNDED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """Settings of the tier; `of` takes them out of a mapping of Kafka's names to typed values."""

    node_id: int = 1
    lake_uri: str = "data/lake"
    lake_max_lag_ms: int = -1
    """How old a record may be before it is in the table; -1: only rolled segments are copied."""
    lake_local_grace_ms: int = 60_000
    """How long a local segment stays after it is FINISHED in the lake."""
    lake_worker_idle_ms: int = 300_000
    """How long a worker without work is kept; -1: for ever."""
    lake_start_delay_ms: int = 1_000
    """How long after a partition with records is opened the lake is asked what it holds of it."""
    lake_checkpoint_interval: int = 100
    """Commits of a table between two checkpoints."""
    lake_log_retention_ms: int = 7 * 24 * 3_600_000
    """How long versions of a topic's table are kept; set in the table when it is created."""
    lake_copy_bytes: int = 128 * 1024 * 1024
    """Bytes of log in one copy, unless a single range holds more."""
    lake_copy_threads: int = 2
    """How many threads convert one copy's bytes into files."""
    lake_file_bytes: int = 128 * 1024 * 1024
    """The approximate bytes of records in one Parquet file."""
    lake_compression_level: int = 1
    """The zstd level of the files that copies write."""
    lake_behind_compression_type: str = "snappy"
    """The codec of those files while copies do not keep up with rolled segments."""
    lake_offsets_interval_ms: int = 60_000
    """How often the offsets of partitions and groups are written to the lake; -1: never."""
    lake_maintenance_interval_ms: int = 300_000
    """How often tables are checked for files to merge, sort or rewrite; -1: never."""
    lake_maintenance_file_bytes: int = 128 * 1024 * 1024
    """Up to how many bytes small files are merged, by their size in the store."""
    lake_maintenance_min_files: int = 10
    """How many consecutive small files are merged, whatever their size."""
    lake_maintenance_expired_ratio: float = 0.5
    """The share of a file's offsets that must lie below the log start before it is rewritten."""
    lake_maintenance_compression_level: int = 9
    """The zstd level of rewritten files."""
    lake_reader_cache_bytes: int = 16 * 1024 * 1024
    """Bytes of batches that the worker caches for consumers of cold records."""
    log_dirs: tuple[str, ...] = ("data/log",)
    """The cache of cold reads is in the first."""
    remote_log_index_file_cache_total_size_bytes: int = 1 << 30
    remote_log_index_file_cache_ttl_ms: int = 900_000
    remote_log_manager_task_interval_ms: int = 30_000
    remote_log_manager_task_retry_backoff_ms: int = 500
    remote_log_manager_task_retry_backoff_max_ms: int = 30_000
    remote_log_reader_threads: int = 2
    remote_log_reader_max_pending_tasks: int = 100
    remote_fetch_max_wait_ms: int = 500
    remote_list_offsets_request_timeout_ms: int = 30_000
    remote_log_manager_copy_max_bytes_per_second: int = UNBOUNDED
    remote_log_manager_copy_quota_window_num: int = 11
    remote_log_manager_copy_quota_window_size_seconds: int = 1
    remote_log_manager_fetch_max_bytes_per_second: int = UNBOUNDED
    remote_log_manager_fetch_quota_window_num: int = 11
    remote_log_manager_fetch_quota_window_size_seconds: int = 1

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take each field from the setting of the same name; a missing setting has its default."""
        names = {field: field.replace("_", ".") for field in cls.__dataclass_fields__}
        return cls(**{field: values[name] for field, name in names.items() if name in values})

    def value_of(self, name: str) -> Any:
        """The value of the setting of this name, as it was at the start."""
        return getattr(self, name.replace(".", "_"))

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
