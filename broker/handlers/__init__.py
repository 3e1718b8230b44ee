"""Shell: the APIs that this broker serves; importing the package registers them all.

Rules of this file: one module an API, each opening with its contract: what it does, what its versions add, what is
left out. `docs/protocol.md` and the answer to ApiVersions follow from their registrations.
"""

from broker.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    partition_reassignments,
    produce,
    update_features,
)

__all__ = [
    "alter_configs",
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_log_dirs",
    "describe_quorum",
    "describe_topic_partitions",
    "elect_leaders",
    "fetch",
    "find_coordinator",
    "incremental_alter_configs",
    "init_producer_id",
    "list_offsets",
    "metadata",
    "offset_for_leader_epoch",
    "partition_reassignments",
    "produce",
    "update_features",
]
