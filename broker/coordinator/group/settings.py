"""Pure: the settings of groups from a broker's settings.

Rules of this file: names are the same on both sides, so none can be forgotten. Whether the replication factor was set
by the user is no setting itself; it follows from where its value came from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of all groups, under Kafka's names, with its defaults."""

    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_session_timeout_ms: int = 45_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_min_session_timeout_ms: int = 6_000
    offset_metadata_max_bytes: int = 4096
    offsets_commit_timeout_ms: int = 5_000
    offsets_load_buffer_size: int = 5 * 1024 * 1024
    offsets_retention_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 100 * 1024 * 1024
    is_replication_factor_set: bool = False

    @property
    def offsets_retention_ms(self) -> int:
        """How long offsets of a group without members are kept."""
        return self.offsets_retention_minutes * 60_000


def group_settings(config: Any) -> GroupSettings:
    """What a broker's configuration says of groups."""
    given: dict[str, Any] = {
        each.name: getattr(config, each.name, None) for each in fields(GroupSettings)
    }
    given["is_replication_factor_set"] = "offsets.topic.replication.factor" in config.origins
    return GroupSettings(**given)
