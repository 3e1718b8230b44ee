"""What several tests use: TIERED."""

from __future__ import annotations

from tests.integration.replicated_nodes import (
    QUICK,
)

TIERED = {
    **QUICK,
    "remote_log_storage_system_enable": "true",
    "lake_local_grace_ms": 0,
    "lake_start_delay_ms": 10,
    "remote_log_manager_task_interval_ms": 100,
    "log_retention_check_interval_ms": 100,
    "log_segment_bytes": 1 << 20,
    # The records' times are long past.
    "log_retention_ms": -1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_min_isr": 1,
    # A range each: where one ends is told by segments, and not by what was copied together.
    "lake_copy_bytes": 1,
}
