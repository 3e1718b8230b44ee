"""Pure: the active controller's decisions: it takes a request and returns events.

A decision changes nothing: it returns events and the answer for when they are durable; `MetadataImage.replay` alone
changes the state. The given image holds everything decided so far, so that two requests in one commit see each other.
Heartbeats (`liveness`) are in no log, and count even if a decision is not committed. The driver calls `claimed` when
its leadership begins, and `committed` with durable events. A refused part is one result; a refused request a
KafkaError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.controller import (
    brokers,
    delegation_tokens,
    elections,
    isr,
    reassignment,
    security,
    topics,
)
from broker.controller import configs as administration
from broker.controller.brokers import (
    DirectoryAssignment,
    Heartbeat,
    HeartbeatReply,
    RegistrationRequest,
)
from broker.controller.configs import (
    ConfigRules,
    FeatureResult,
    FeatureUpdate,
    ResourceAlteration,
    ResourceResult,
)
from broker.controller.draft import ControllerResult, Defaults, Draft, PartitionChangeResult, T
from broker.controller.elections import ElectionType
from broker.controller.isr import AlterPartition, AlterPartitionResult
from broker.controller.liveness import BrokerSession, Sessions
from broker.controller.reassignment import (
    OngoingReassignment,
    Reassignment,
)
from broker.controller.security import QuotaAlteration, ScramDeletion, ScramUpsertion
from broker.controller.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    MorePartitions,
    NewTopic,
    TopicCreation,
    TopicResult,
)
from broker.metadata.acls import Acl, AclFilter
from broker.metadata.events import (
    BrokerRegistrationChanged,
    BrokerUnregistered,
    ControllerChange,
    DelegationTokenChanged,
    Endpoint,
    Event,
    FenceBroker,
    ProducerIdBlock,
    RegisterBroker,
    SupportedFeature,
)
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition

# What users of a controller import from here, with the controller.
__all__ = [
    "PARTITIONS_PER_REQUEST_MAX",
    "Controller",
    "ControllerResult",
    "Defaults",
    "NewTopic",
    "TopicResult",
]

PRODUCER_IDS_PER_BLOCK = 1000


class Controller:
    """Decides over an image of the cluster."""

    def __init__(
        self,
        image: MetadataImage,
        *,
        defaults: Defaults,
        new_uuid: Callable[[], bytes],
        check_configs: Callable[[Mapping[str, str]], None],
        session_timeout_ms: int,
    ) -> None:
        """`session_timeout_ms` is `broker.session.timeout.ms`."""
        self.image = image
        self._defaults = defaults
        self._new_uuid = new_uuid
        self._check_configs = check_configs
        self._sessions = Sessions(session_timeout_ms)

    def reset(self, image: MetadataImage) -> None:
        """Decide by this image from now on: what was decided since it did not happen."""
        self.image = image

    def draft(self) -> Draft:
        return Draft(self.image, self._defaults)

    def _decide(
        self, make: Callable[[Draft], T], *, validate_only: bool = False
    ) -> ControllerResult[T]:
        draft = self.draft()
        result = make(draft)
        return ControllerResult(events=() if validate_only else draft.events(), result=result)

    # -- the controller itself ----------------------------------------------------------------

    def claim(self, controller_id: int) -> ControllerResult[int]:
        """Become the active controller: the highest committed epoch plus one.

        With ELR the first controller's min.insync.replicas becomes the cluster's, as in Kafka (KIP-966).
        """
        epoch = self.image.controller_epoch + 1
        change = ControllerChange(controller_id=controller_id, controller_epoch=epoch)
        draft = self.draft()
        administration.set_cluster_min_isr(draft)
        administration.update_elrs(draft)
        return ControllerResult(events=(change, *draft.events()), result=epoch)

    def begin_sessions(self, now_ms: int) -> None:
        """Every unfenced broker has a session from now on, whatever it had before."""
        self._sessions.begin(self.image.brokers.values(), self.image.version, now_ms)

    def committed(self, version: int, events: Sequence[Event]) -> None:
        """These events are durable at this version. Sessions of fenced and removed brokers end."""
        for event in events:
            if isinstance(event, RegisterBroker):
                self.image.registered_at(event.broker_id, event.broker_epoch, version)
            elif isinstance(event, BrokerRegistrationChanged) and event.in_controlled_shutdown:
                self._sessions.shutdown_begins(event.broker_id, version)
            elif isinstance(event, FenceBroker | BrokerUnregistered):
                self._sessions.committed(event.broker_id, event.broker_epoch)

    # -- brokers ------------------------------------------------------------------------------

    def register_broker(
        self,
        broker_id: int,
        *,
        incarnation_id: bytes,
        endpoints: Sequence[Endpoint],
        rack: str | None,
        previous_broker_epoch: int,
        log_dirs: Sequence[bytes] = (),
        features: Sequence[SupportedFeature] = (),
        fenced: bool = True,
    ) -> ControllerResult[bool]:
        """Register a started broker; the result has whether it had stopped cleanly.

        Its epoch is in the event, and in the image once that is durable. With `fenced` False it may lead at once: so an
        active controller registers itself, in the commit of its claim.

        Raises DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION, UNSUPPORTED_VERSION.
        """
        wanted = RegistrationRequest(
            broker_id=broker_id,
            incarnation_id=incarnation_id,
            endpoints=tuple(endpoints),
            rack=rack,
            previous_broker_epoch=previous_broker_epoch,
            log_dirs=tuple(log_dirs),
            features=tuple(features),
        )
        return self._decide(lambda d: brokers.register(d, self._sessions, wanted, fenced=fenced))

    def heartbeat(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        metadata_version: int,
        want_fence: bool,
        want_shut_down: bool,
        now_ms: int,
        offline_log_dirs: Sequence[bytes] = (),
        full_log_dirs: Sequence[bytes] = (),
        cordoned_log_dirs: Sequence[bytes] | None = None,
    ) -> ControllerResult[HeartbeatReply]:
        """Process a broker's heartbeat. Raises STALE_BROKER_EPOCH."""
        beat = Heartbeat(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            metadata_version=metadata_version,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=tuple(offline_log_dirs),
            full_log_dirs=tuple(full_log_dirs),
            cordoned_log_dirs=None if cordoned_log_dirs is None else tuple(cordoned_log_dirs),
        )
        return self._decide(lambda d: brokers.heartbeat(d, self._sessions, beat, now_ms))

    def expire_sessions(self, now_ms: int) -> ControllerResult[None]:
        """Fence every broker whose session has expired, all in one commit."""
        return self._decide(lambda d: brokers.expire(d, self._sessions, now_ms))

    def next_deadline_ms(self) -> int | None:
        """When the next session expires unless a heartbeat comes; None if there is no session."""
        return self._sessions.next_deadline_ms()

    def fence_broker(self, broker_id: int) -> ControllerResult[None]:
        """Fence a broker that is known to be gone: the controller whose place was claimed."""

        def fence(draft: Draft) -> None:
            known = draft.brokers.get(broker_id)
            if known is not None and not known.fenced:
                brokers.fence(draft, broker_id)

        return self._decide(fence)

    def sessions(self) -> dict[int, BrokerSession]:
        """The brokers with a session: how far each has read the log, and when it reported that."""
        return self._sessions.all()

    def unregister_broker(self, broker_id: int) -> ControllerResult[None]:
        """Unregister a broker. Raises BROKER_ID_NOT_REGISTERED."""
        return self._decide(lambda d: brokers.unregister(d, self._sessions, broker_id))

    def assign_directories(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[DirectoryAssignment]
    ) -> ControllerResult[dict[DirectoryAssignment, ErrorCode]]:
        """Record the directories of a broker's replicas (KIP-858). Raises STALE_BROKER_EPOCH."""
        return self._decide(
            lambda d: brokers.assign_directories(d, broker_id, broker_epoch, wanted)
        )

    def allocate_producer_ids(self, broker_id: int) -> ControllerResult[range]:
        """A block of producer ids that was never given out (KIP-730)."""
        first = self.image.next_producer_id
        block = ProducerIdBlock(
            broker_id=broker_id, first_producer_id=first, size=PRODUCER_IDS_PER_BLOCK
        )
        return ControllerResult(events=(block,), result=range(first, first + block.size))

    # -- leaders and replicas -----------------------------------------------------------------

    def alter_partitions(
        self, broker_id: int, broker_epoch: int, partitions: Sequence[AlterPartition]
    ) -> ControllerResult[list[AlterPartitionResult]]:
        """Change ISRs as their leader proposes, one result for each. Raises STALE_BROKER_EPOCH."""
        return self._decide(lambda d: isr.alter_partitions(d, broker_id, broker_epoch, partitions))

    def elect_leaders(
        self, kind: ElectionType, partitions: Sequence[TopicPartition] | None
    ) -> ControllerResult[list[PartitionChangeResult]]:
        """Elect leaders of these partitions, None: of all that need one (KIP-460)."""
        return self._decide(lambda d: elections.elect_leaders(d, kind, partitions))

    def balance_leaders(self) -> ControllerResult[int]:
        """Give leadership back to preferred replicas (auto.leader.rebalance.enable); how many partitions moved."""
        return self._decide(elections.balance_leaders)

    def alter_reassignments(
        self, wanted: Sequence[Reassignment], *, allow_replication_factor_change: bool = True
    ) -> ControllerResult[list[PartitionChangeResult]]:
        """Begin, change or cancel the moves of replicas (KIP-455), one result for each."""
        return self._decide(
            lambda d: reassignment.alter_reassignments(
                d, wanted, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_reassignments(
        self, partitions: Mapping[str, Sequence[int]] | None
    ) -> ControllerResult[list[OngoingReassignment]]:
        """The moves in progress among these partitions, by topic; None: of all partitions."""
        return self._decide(lambda d: reassignment.list_reassignments(d, partitions))

    # -- topics -------------------------------------------------------------------------------

    def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> ControllerResult[list[TopicResult]]:
        """Create each topic that can be created."""
        creation = TopicCreation(
            self.draft(),
            defaults=self._defaults,
            new_uuid=self._new_uuid,
            check_configs=self._check_configs,
        )
        return creation.create(wanted, validate_only=validate_only)

    def create_partitions(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> ControllerResult[list[TopicResult]]:
        """Grow each topic that can be grown."""
        return topics.create_partitions(self.draft(), wanted, validate_only=validate_only)

    def delete_topics(
        self, wanted: Sequence[tuple[str | None, bytes]]
    ) -> ControllerResult[list[TopicResult]]:
        """Delete each topic named by its name or, where that is None, by its id."""
        return topics.delete_topics(self.image, wanted)

    # -- settings -----------------------------------------------------------------------------

    def alter_configs(
        self,
        resources: Sequence[ResourceAlteration],
        rules: ConfigRules,
        *,
        validate_only: bool = False,
    ) -> ControllerResult[list[ResourceResult]]:
        """Change the settings of each resource as a whole, or not at all."""
        return self._decide(
            lambda d: administration.alter_configs(d, resources, rules),
            validate_only=validate_only,
        )

    def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> ControllerResult[list[FeatureResult]]:
        """Set the level of each feature that can have it (KIP-584)."""
        return self._decide(
            lambda d: administration.update_features(d, updates), validate_only=validate_only
        )

    # -- security -----------------------------------------------------------------------------

    def create_acls(self, wanted: Sequence[Acl]) -> ControllerResult[list[KafkaError | None]]:
        """Make these ACLs; a refusal, or None, for each."""
        return security.create_acls(self.image.security, wanted, self._new_uuid)

    def delete_acls(
        self, filters: Sequence[AclFilter]
    ) -> ControllerResult[list[list[Acl] | KafkaError]]:
        """Delete the ACLs that match these filters; for each filter the matches, or a refusal."""
        return security.delete_acls(self.image.security, filters)

    def alter_quotas(
        self, wanted: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> ControllerResult[list[KafkaError | None]]:
        """Change the quotas of each entity as a whole (KIP-546); a refusal, or None, for each."""
        return security.alter_quotas(self.image.security, wanted, validate_only=validate_only)

    def alter_scram(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> ControllerResult[dict[str, KafkaError | None]]:
        """Change each user's credentials as a whole (KIP-554); a refusal, or None, for each user."""
        return security.alter_scram(self.image.security, deletions, upsertions)

    def delete_expired_tokens(self, now_ms: int) -> ControllerResult[list[DelegationTokenChanged]]:
        """Delete the delegation tokens that have expired; which ones."""
        return delegation_tokens.expired_tokens(self.image.security.tokens, now_ms)
