"""Shell: the served APIs, the cluster's brokers, leaders and coordinators, features and quorum."""

from broker.handlers.cluster import (
    api_versions,
    describe_cluster,
    describe_quorum,
    describe_topic_partitions,
    find_coordinator,
    metadata,
    unregister_broker,
    update_features,
)

__all__ = [
    "api_versions",
    "describe_cluster",
    "describe_quorum",
    "describe_topic_partitions",
    "find_coordinator",
    "metadata",
    "unregister_broker",
    "update_features",
]
