"""Pure: the state of Apache Kafka's metadata log: topics, settings, brokers, ACLs, quotas.

- Records are replayed in order, the snapshot's first; those of a metadata transaction at its end (KIP-868). A
  transaction that is open at the end of the log is ignored.
- Records that are not adopted are counted by kind, for the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from broker.metadata.events import AclCreated, PartitionRegistration, QuotaComponent
from broker.metadata.security_image import QuotaEntity, in_order
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_ds.protocol.messages.persisted_metadata import (
    NO_LEADER_CHANGE,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

# Record types that are not adopted. Further types concern only the quorum.
NOT_ADOPTED = {10: "delegation tokens", 11: "SCRAM credentials"}
Quota = tuple[QuotaEntity, str]


@dataclass(slots=True, kw_only=True)
class KafkaTopic:
    """A topic in Kafka's metadata."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionRegistration] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)


class KafkaCluster:
    """The state of the replayed records."""

    def __init__(self) -> None:
        self.topics: dict[bytes, KafkaTopic] = {}
        # The latest broker epochs.
        self.brokers: dict[int, int] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.acls: dict[bytes, AclCreated] = {}
        self.quotas: dict[Quota, float] = {}
        self.next_producer_id = 0
        self.not_adopted: Counter[str] = Counter()
        self._configs: dict[str, dict[str, str]] = {}
        self._transaction: list[MetadataRecord | int] | None = None

    def replay(self, record: MetadataRecord | int) -> None:
        """Replay a record, or the number of an undecoded type. Raises MalformedFrame if it contradicts the state."""
        if isinstance(record, BeginTransactionRecord):
            self._transaction = []
        elif isinstance(record, AbortTransactionRecord):
            self._transaction = None
        elif isinstance(record, EndTransactionRecord):
            waiting, self._transaction = self._transaction or [], None
            for each in waiting:
                self._apply(each)
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            self._apply(record)

    def _apply(self, record: MetadataRecord | int) -> None:
        match record:
            case int():
                if record in NOT_ADOPTED:
                    self.not_adopted[NOT_ADOPTED[record]] += 1
            case PartitionRecord():
                self._topic(record.topic_id).partitions[record.partition_id] = _registration(record)
            case PartitionChangeRecord():
                self._change(record)
            case ConfigRecord():
                self._set(record)
            case RegisterBrokerRecord():
                self.brokers[record.broker_id] = record.broker_epoch
            case UnregisterBrokerRecord():
                self.brokers.pop(record.broker_id, None)
            case ProducerIdsRecord():
                self.next_producer_id = max(self.next_producer_id, record.next_producer_id)
            case TopicRecord() | RemoveTopicRecord():
                self._apply_topic(record)
            case _:
                self._apply_security(record)

    def _apply_topic(self, record: TopicRecord | RemoveTopicRecord) -> None:
        if isinstance(record, RemoveTopicRecord):
            self._configs.pop(self._topic(record.topic_id).name, None)
            del self.topics[record.topic_id]
        else:
            self.topics[record.topic_id] = KafkaTopic(
                name=record.name,
                topic_id=record.topic_id,
                configs=self._configs.setdefault(record.name, {}),
            )

    def _apply_security(self, record: MetadataRecord) -> None:
        match record:
            case AccessControlEntryRecord():
                self.acls[record.id] = _acl(record)
            case RemoveAccessControlEntryRecord():
                self.acls.pop(record.id, None)
            case ClientQuotaRecord():
                # Kafka's records have the components in any order.
                whom = in_order(
                    QuotaComponent(entity_type=each.entity_type, entity_name=each.entity_name)
                    for each in record.entity
                )
                if record.remove:
                    self.quotas.pop((whom, record.key), None)
                else:
                    self.quotas[whom, record.key] = record.value
            case _:
                raise AssertionError(f"not a record of the metadata log: {record!r}")

    def _topic(self, topic_id: bytes) -> KafkaTopic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise MalformedFrame(f"the metadata log refers to an unknown topic: {topic_id.hex()}")
        return topic

    def _set(self, record: ConfigRecord) -> None:
        if record.resource_type == TOPIC_RESOURCE:
            # In a snapshot settings may precede their topics.
            configs = self._configs.setdefault(record.resource_name, {})
        elif record.resource_type == BROKER_RESOURCE:
            configs = self.broker_configs.setdefault(record.resource_name, {})
        else:
            self.not_adopted["settings of groups and client metrics"] += 1
            return
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _change(self, record: PartitionChangeRecord) -> None:
        partitions = self._topic(record.topic_id).partitions
        old = partitions.get(record.partition_id)
        if old is None:
            raise MalformedFrame(
                f"the metadata log changes partition {record.partition_id}, which does not exist"
            )
        new = replace(
            old,
            isr=_either(record.isr, old.isr),
            replicas=_either(record.replicas, old.replicas),
            removing_replicas=_either(record.removing_replicas, old.removing_replicas),
            adding_replicas=_either(record.adding_replicas, old.adding_replicas),
            elr=_either(record.eligible_leader_replicas, old.elr),
            last_known_elr=_either(record.last_known_elr, old.last_known_elr),
            directories=old.directories
            if record.directories is None
            else tuple(record.directories),
            partition_epoch=old.partition_epoch + 1,
        )
        if record.leader != NO_LEADER_CHANGE:
            # An election increments the epoch even if the leader stays the same.
            new = replace(new, leader=record.leader, leader_epoch=old.leader_epoch + 1)
        if record.leader_recovery_state >= 0:
            new = replace(new, leader_recovery_state=record.leader_recovery_state)
        partitions[record.partition_id] = new


def _either(new: Sequence[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _registration(record: PartitionRecord) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=record.leader_recovery_state,
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        adding_replicas=tuple(record.adding_replicas),
        removing_replicas=tuple(record.removing_replicas),
        directories=tuple(record.directories),
    )


def _acl(record: AccessControlEntryRecord) -> AclCreated:
    return AclCreated(
        acl_id=record.id,
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission=record.permission_type,
    )
