"""Pure: the settings that compaction needs, as one value.

Rules of this file: a field is named after its setting, with the dots replaced; defaults are Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

# A key takes its hash of 16 bytes and its last offset, as in Kafka's own table.
KEY_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Settings of the log cleaner; `of` takes them out of a mapping of Kafka's names to typed values."""

    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_dedupe_buffer_size: int = 128 << 20
    log_cleaner_io_buffer_size: int = 512 << 10
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    log_cleaner_backoff_ms: int = 15_000

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take each field from the setting of the same name; a setting not there keeps its default."""
        names = {field: field.replace("_", ".") for field in cls.__dataclass_fields__}
        return cls(**{field: values[name] for field, name in names.items() if name in values})

    @property
    def slots(self) -> int:
        """How many keys there is memory for in one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads // KEY_BYTES

    @property
    def keys_max(self) -> int:
        """How many keys one thread may know at a time."""
        return max(int(self.slots * self.log_cleaner_io_buffer_load_factor), 1)

    @property
    def read_bytes(self) -> int:
        """How much of a log one thread reads at a time; the other half is for what it writes."""
        return max(self.log_cleaner_io_buffer_size // self.log_cleaner_threads // 2, 1)
