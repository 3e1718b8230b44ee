"""Pure: a broker's metrics of its part in the cluster, under Kafka's names.

Counters only grow, from the start of the process. `broker.broker_metrics` shows what is in the metadata themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.metrics.names import MetricSample, attribute, gauge, meter

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from broker.membership.member import ClusterMember

_CONTROLLER = "kafka.controller:type=KafkaController,name="
_STATS = "kafka.controller:type=ControllerStats,name="
_METADATA = "kafka.server:type=broker-metadata-metrics"

UNCLEAN_ELECTIONS = meter(
    f"{_STATS}UncleanLeaderElectionsPerSec",
    "Elections of a leader that was neither in sync nor eligible: committed records may be lost.",
)
ELR_ELECTIONS = meter(
    f"{_STATS}ElectionFromEligibleLeaderReplicasPerSec",
    "Elections of a leader from the eligible leader replicas (KIP-966).",
)
NEW_ACTIVE_CONTROLLERS = gauge(
    f"{_CONTROLLER}NewActiveControllersCount", "How often this broker has become the controller."
)
METADATA_ERRORS = gauge(
    f"{_CONTROLLER}MetadataErrorCount", "Commits that took no effect on this broker."
)
LAST_COMMITTED = gauge(
    f"{_CONTROLLER}LastCommittedRecordOffset",
    "The last durable version of the metadata log.",
)
PENDING = gauge(
    f"{_CONTROLLER}PendingDecisionCount",
    "Changes of the metadata that wait until earlier ones are written to the store.",
    ours=True,
)
STORE_AWAY = gauge(
    f"{_CONTROLLER}MetadataStoreUnansweredCount",
    "Commits without an answer from the store, or that could not reach it; each is retried.",
    ours=True,
)
APPLY_ERRORS = attribute(
    _METADATA, "metadata-apply-error-count", "Commits that took no effect on this broker."
)


def cluster_samples(driver: MetadataDriver, member: ClusterMember) -> Iterator[MetricSample]:
    """Everything that is counted."""
    yield NEW_ACTIVE_CONTROLLERS, (), driver.new_active_controllers
    yield UNCLEAN_ELECTIONS, (), driver.stats.unclean_leader_elections
    yield ELR_ELECTIONS, (), driver.stats.elections_from_elr
    yield METADATA_ERRORS, (), driver.apply_errors
    yield APPLY_ERRORS, (), driver.apply_errors
    yield LAST_COMMITTED, (), driver.image.version
    yield PENDING, (), driver.pending
    yield STORE_AWAY, (), driver.fates_unknown + member.candidacy.store_errors
