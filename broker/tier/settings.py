"""Pure: what the tier needs to know of the configuration, as one value.

Rules of this file: a field is the setting of that name with its dots replaced; defaults are the
broker's; nothing here reads a file or an environment variable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """Settings of the tier; `of` takes them out of a mapping of Kafka's names to typed values."""

    node_id: int = 1
    lake_uri: str = "data/lake"
    lake_max_lag_ms: int = -1
    lake_local_grace_ms: int = 60_000
    lake_worker_idle_ms: int = 300_000
    lake_checkpoint_interval: int = 100
    lake_log_retention_ms: int = 7 * 24 * 3_600_000
    lake_reader_cache_bytes: int = 32 * 1024 * 1024
    remote_log_manager_task_interval_ms: int = 30_000
    remote_log_reader_threads: int = 2
    remote_log_reader_max_pending_tasks: int = 100

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take each field from the setting of the same name; a setting not there keeps its default."""
        names = {field: field.replace("_", ".") for field in cls.__dataclass_fields__}
        return cls(**{field: values[name] for field, name in names.items() if name in values})
