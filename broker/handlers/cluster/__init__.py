"""Shell: what is served, which brokers there are, who leads and coordinates what, features and quorum."""

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
