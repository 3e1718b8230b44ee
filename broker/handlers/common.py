"""Pure: answers that several handlers share: leaders, permitted operations, how long to wait.

No handler is registered here, and nothing here is special to one API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker.metadata.features import GROUP_FEATURE, SHARE_FEATURE, STREAMS_FEATURE, level_of
from broker.metadata.image import BrokerRegistration, MetadataImage
from broker.security.authorization.permissions import may, operations_for
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.data import LeaderIdAndEpoch, NodeEndpoint

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker
    from broker.registry import RequestContext

NOT_ASKED = -2147483648


MEMBER_ID_LENGTH_MAX = 36


def check_consumer_groups(broker: KafkaBroker) -> None:
    """Refuse while group.version is 0, or the broker's settings leave the protocol out; raises KafkaError."""
    _check_protocol(broker, GROUP_FEATURE, "consumer")


def check_share_groups(image: MetadataImage) -> None:
    """Refuse while share.version is 0; raises KafkaError."""
    if level_of(image, SHARE_FEATURE) == 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def check_streams_groups(broker: KafkaBroker) -> None:
    """Refuse while streams.version is 0, or the broker's settings leave the protocol out; raises KafkaError."""
    _check_protocol(broker, STREAMS_FEATURE, "streams")


def _check_protocol(broker: KafkaBroker, feature: str, protocol: str) -> None:
    """As in Kafka without a message: its clients have one of their own."""
    is_left_out = protocol not in broker.config.group_coordinator_rebalance_protocols
    if is_left_out or level_of(broker.metadata, feature) == 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def check_share_member(member_id: str | None) -> None:
    """Refuse a member of a share group without an id, or with a long one; raises KafkaError."""
    if member_id is None or not 0 < len(member_id) <= MEMBER_ID_LENGTH_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def topic_operations(context: RequestContext, name: str) -> int:
    """What the client may do to a topic, as bits by the operations' numbers (KIP-430)."""
    return operations_for(context, ResourceType.TOPIC, name)


def cluster_operations(context: RequestContext) -> int:
    """What the client may do to the cluster, in the same way; nothing if it may not describe the cluster."""
    if not may(context, AclOperation.DESCRIBE):
        return 0
    return operations_for(context, ResourceType.CLUSTER, CLUSTER_NAME)


def brokers_of(
    image: MetadataImage, listener: str, *, fenced: bool = False
) -> list[tuple[BrokerRegistration, str, int]]:
    """The brokers that clients of a listener can reach, each with host and port, by number."""
    found = []
    for broker in sorted(image.brokers.values(), key=lambda each: each.broker_id):
        endpoint = broker.endpoint(listener)
        if endpoint is not None and (fenced or not broker.fenced):
            found.append((broker, endpoint.host, endpoint.port))
    return found


def controller_of(image: MetadataImage, seen: Sequence[tuple[BrokerRegistration, str, int]]) -> int:
    """The broker that is named to a client as the controller; -1 if the client sees no broker.

    Any broker forwards requests to the controller (KIP-590), so Kafka names any live broker. Here it is the controller,
    as long as it is alive: if the named broker goes away, it waits for it (librdkafka for a minute,
    without asking again).
    """
    staying = [broker.broker_id for broker, _, _ in seen if broker.is_active]
    if image.controller_id in staying:
        return image.controller_id
    return staying[0] if staying else -1


def leader_of(image: MetadataImage, topic: str, partition: int) -> LeaderIdAndEpoch | None:
    """Where a client that asked the wrong broker should go (KIP-951)."""
    registration = image.partition(topic, partition)
    if registration is None:
        return None
    return LeaderIdAndEpoch(leader_id=registration.leader, leader_epoch=registration.leader_epoch)


def endpoints_of(
    image: MetadataImage, listener: str, leaders: Sequence[LeaderIdAndEpoch]
) -> list[NodeEndpoint]:
    """The addresses of the brokers that were named as leaders (KIP-951)."""
    wanted = {leader.leader_id for leader in leaders}
    return [
        NodeEndpoint(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)
        for broker, host, port in brokers_of(image, listener)
        if broker.broker_id in wanted
    ]


# Errors after which a client has to look for the leader again.
LEADERSHIP_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
