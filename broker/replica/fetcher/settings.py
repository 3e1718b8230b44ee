"""Pure: what following needs to know of the configuration, as one value.

Rules of this file: a field is the setting of that name with its dots replaced; defaults are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Settings of a follower."""

    num_replica_fetchers: int = 1
    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_min_bytes: int = 1
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    follower_fetch_last_tiered_offset_enable: bool = False
    remote_log_manager_task_interval_ms: int = 30_000
    lake_local_grace_ms: int = 60_000
    replica_socket_timeout_ms: int = 30_000
    replica_socket_receive_buffer_bytes: int = 64 << 10


def replication_settings(config: Any) -> ReplicationSettings:
    """What a broker's configuration says of following."""
    names = [each.name for each in fields(ReplicationSettings)]
    return ReplicationSettings(**{name: getattr(config, name) for name in names})
