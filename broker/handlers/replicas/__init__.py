"""Shell: replicas and leaders: log directories, elections, reassignments."""

from broker.handlers.replicas import (
    alter_replica_log_dirs,
    describe_log_dirs,
    elect_leaders,
    partition_reassignments,
)

__all__ = [
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "elect_leaders",
    "partition_reassignments",
]
