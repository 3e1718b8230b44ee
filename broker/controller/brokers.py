"""Pure: the active controller's decisions about brokers: registration, heartbeats, shutdown, removal.

As KRaft's ClusterControlManager and BrokerHeartbeatManager: a broker begins fenced, and is unfenced by a heartbeat that
knows its registration. While one incarnation has a session, another one of the id is refused. A broker that is fenced,
stops or is removed leaves every ISR in the same commit; after an unclean stop (it does not name its last epoch) its
replicas are no longer eligible. A broker that wants to stop may stop when the others know its leaders' successors.
Replicas in a failed log directory leave ISR and leadership (KIP-112, KIP-858), in a full one only where others can
lead. Directories that a broker reports as cordoned get no new replicas (KIP-1066).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from broker.controller.draft import Draft
from broker.controller.liveness import Sessions
from broker.metadata.events import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    Endpoint,
    PartitionRegistration,
    RegisterBroker,
    SupportedFeature,
)
from broker.metadata.features import why_unsupported
from broker.metadata.image import BrokerRegistration
from broker.metadata.partition_change import PartitionChange
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

_RESERVED_DIRECTORIES = (UNASSIGNED_DIRECTORY, LOST_DIRECTORY, MIGRATING_DIRECTORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationRequest:
    """A broker's registration request."""

    broker_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    previous_broker_epoch: int = NO_BROKER_EPOCH
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[SupportedFeature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker's heartbeat."""

    broker_id: int
    broker_epoch: int
    metadata_version: int
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[bytes, ...] = field(default=())
    full_log_dirs: tuple[bytes, ...] = field(default=())
    """Those of the offline ones that only are full: the broker still has them."""
    cordoned_log_dirs: tuple[bytes, ...] | None = None
    """None: the broker does not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """A broker's state as the controller sees it."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAssignment:
    """A replica on the requesting broker, and its directory (KIP-858)."""

    directory: bytes
    topic_id: bytes
    partition: int


# -- registration ---------------------------------------------------------------------------------


def register(
    draft: Draft, sessions: Sessions, wanted: RegistrationRequest, *, fenced: bool
) -> bool:
    """Register a started broker; whether it had stopped cleanly.

    Raises DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION (directories), UNSUPPORTED_VERSION (features).
    """
    known = draft.brokers.get(wanted.broker_id)
    is_same = known is not None and known.incarnation_id == wanted.incarnation_id
    if (
        known is not None
        and not is_same
        and sessions.has_session(known.broker_id, known.broker_epoch)
    ):
        message = (
            f"Another broker is registered with that broker id: incarnation "
            f"{uuid_text(known.incarnation_id)} of broker {known.broker_id} is still alive."
        )
        raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
    _check_directories(draft, wanted)
    unsupported = why_unsupported(draft.image, wanted.features)
    if unsupported is not None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, unsupported)
    # As they were, until its first heartbeat.
    cordoned = () if known is None else known.cordoned_log_dirs
    if known is not None and is_same:
        _amend(draft, wanted, known)
        return True
    draft.register(
        RegisterBroker(
            broker_id=wanted.broker_id,
            incarnation_id=wanted.incarnation_id,
            endpoints=wanted.endpoints,
            rack=wanted.rack,
            previous_broker_epoch=wanted.previous_broker_epoch,
            broker_epoch=draft.next_broker_epoch(),
            fenced=fenced,
            log_dirs=wanted.log_dirs,
            cordoned_log_dirs=cordoned,
            features=wanted.features,
        )
    )
    is_clean = known is not None and known.broker_epoch == wanted.previous_broker_epoch
    _remove_from_isrs(draft, [wanted.broker_id], is_clean=is_clean)
    if not fenced:
        _elect_where_leaderless(draft, wanted.broker_id)
    return is_clean or (known is None and wanted.previous_broker_epoch == NO_BROKER_EPOCH)


def _amend(draft: Draft, wanted: RegistrationRequest, known: BrokerRegistration) -> None:
    """The same incarnation once more: its properties may be new, its identity stays."""
    draft.register(
        RegisterBroker(
            broker_id=wanted.broker_id,
            incarnation_id=wanted.incarnation_id,
            endpoints=wanted.endpoints,
            rack=wanted.rack,
            previous_broker_epoch=wanted.previous_broker_epoch,
            broker_epoch=known.broker_epoch,
            fenced=known.fenced,
            in_controlled_shutdown=known.in_controlled_shutdown,
            log_dirs=wanted.log_dirs,
            cordoned_log_dirs=known.cordoned_log_dirs,
            features=wanted.features,
        )
    )


def _check_directories(draft: Draft, wanted: RegistrationRequest) -> None:
    directories = wanted.log_dirs
    if any(each in _RESERVED_DIRECTORIES for each in directories):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    if len(set(directories)) < len(directories):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for broker in draft.brokers.values():
        shared = set(directories) & set(broker.log_dirs)
        if shared and broker.broker_id != wanted.broker_id:
            message = (
                f"Broker {broker.broker_id} is already registered with directory "
                f"{uuid_text(min(shared))}"
            )
            raise KafkaError(ErrorCode.INVALID_REGISTRATION, message)


# -- sessions -------------------------------------------------------------------------------------


def heartbeat(draft: Draft, sessions: Sessions, beat: Heartbeat, now_ms: int) -> HeartbeatReply:
    """Process a heartbeat: fence or unfence the broker, move its leaders, let it stop. Raises STALE_BROKER_EPOCH."""
    broker_id = beat.broker_id
    broker = check_broker_epoch(draft, broker_id, beat.broker_epoch)
    _lose_directories(draft, broker_id, set(beat.offline_log_dirs) - set(beat.full_log_dirs))
    for each in beat.full_log_dirs:
        if not _has_last_online_isr_replica(draft, broker_id, each):
            _lose_directories(draft, broker_id, [each])
    cordoned = beat.cordoned_log_dirs
    if cordoned is not None and set(cordoned) != set(broker.cordoned_log_dirs):
        draft.change_broker(broker_id, cordoned_log_dirs=cordoned)
    is_caught_up = beat.metadata_version >= broker.version
    sessions.touch(
        broker_id, beat.broker_epoch, metadata_version=beat.metadata_version, now_ms=now_ms
    )
    should_shut_down = False
    if broker.fenced:
        should_shut_down = beat.want_shut_down
        if is_caught_up and not beat.want_fence and not beat.want_shut_down:
            draft.unfence(broker_id)
            _elect_where_leaderless(draft, broker_id)
    elif beat.want_fence:
        should_shut_down = beat.want_shut_down
        fence(draft, broker_id)
    elif beat.want_shut_down:
        should_shut_down = _shut_down(draft, sessions, broker)
    if should_shut_down:
        # Its next incarnation need not wait.
        if broker.fenced:
            sessions.end(broker_id)
        else:
            sessions.end_with_commit(broker_id)
    return HeartbeatReply(
        is_caught_up=is_caught_up,
        is_fenced=draft.brokers[broker_id].fenced,
        should_shut_down=should_shut_down,
    )


def _shut_down(draft: Draft, sessions: Sessions, broker: BrokerRegistration) -> bool:
    """Move the broker's leaders; whether it may stop now."""
    broker_id = broker.broker_id
    leads = any(each.leader == broker_id for _, _, each in draft.partitions())
    if leads or not broker.in_controlled_shutdown:
        if leads:
            draft.change_broker(broker_id, in_controlled_shutdown=True)
            _remove_from_isrs(draft, [broker_id], is_clean=True)
            return False
    else:
        others = [each for each in draft.brokers if each != broker_id and draft.is_active(each)]
        if not sessions.has_been_heard(broker_id, others):
            return False
    fence(draft, broker_id)
    return True


def fence(draft: Draft, *broker_ids: int) -> None:
    """Fence these brokers: they lead nothing and are in no ISR, until their next heartbeat."""
    for broker_id in broker_ids:
        draft.fence(broker_id)
    _remove_from_isrs(draft, broker_ids, is_clean=True)


def expire(draft: Draft, sessions: Sessions, now_ms: int) -> None:
    """Fence the brokers without heartbeats; one that never sent one gets a full session.

    A fencing that is not written is decided again, at once.
    """
    silent = sessions.expired(now_ms)
    unfenced = [b for b in silent if b in draft.brokers and not draft.brokers[b].fenced]
    for broker_id in silent:
        if broker_id in unfenced:
            sessions.end_with_commit(broker_id)
        else:
            sessions.end(broker_id)
    if unfenced:
        fence(draft, *unfenced)
    for broker in draft.brokers.values():
        if not broker.fenced and not sessions.has_session(broker.broker_id, broker.broker_epoch):
            sessions.begin_one(broker, now_ms)


def unregister(draft: Draft, sessions: Sessions, broker_id: int) -> None:
    """Unregister a broker. Raises BROKER_ID_NOT_REGISTERED."""
    if broker_id not in draft.brokers:
        message = f"Broker ID {broker_id} is not currently registered."
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    draft.unregister(broker_id)
    _remove_from_isrs(draft, [broker_id], is_clean=False)
    sessions.end_with_commit(broker_id)


def check_broker_epoch(draft: Draft, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """The broker, if this is its last incarnation; raises STALE_BROKER_EPOCH."""
    broker = draft.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        present = "not registered" if broker is None else f"at epoch {broker.broker_epoch}"
        message = f"Expected broker epoch of broker {broker_id}, which is {present}, but got {broker_epoch}"
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)
    return broker


# -- partitions -----------------------------------------------------------------------------------


def _remove_from_isrs(draft: Draft, leaving: Collection[int], *, is_clean: bool) -> None:
    """Remove these brokers from leadership and ISR; after an unclean stop from the ELR, too.

    They leave together: one by one the leadership would move to the next of them; those that were in sync until the
    same moment hold the same records.
    """

    def without(change: PartitionChange) -> None:
        change.isr = tuple(replica for replica in change.isr if replica not in leaving)
        if not is_clean:
            change.unclean_shutdown_replicas = leaving

    for _, key, registration in draft.partitions():
        held = registration.isr if is_clean else registration.isr + registration.elr
        if any(broker_id in held for broker_id in leaving):
            draft.change(key, without, excluded=leaving)


def _elect_where_leaderless(draft: Draft, broker_id: int) -> None:
    """Partitions without a leader may have waited for this broker."""
    for _, key, registration in draft.partitions():
        may_lead = broker_id in registration.replicas or registration.is_diskless
        if registration.leader == NO_LEADER and may_lead:
            draft.change(key)


# -- directories ----------------------------------------------------------------------------------


def _has_last_online_isr_replica(draft: Draft, broker_id: int, directory: bytes) -> bool:
    """Whether nobody else could lead what a full directory has: what is there can be read, and there may be room again.

    As far as is decided: the broker reports what it can know, and others may have reported the same meanwhile.
    """

    def is_online(other: int, registration: PartitionRegistration) -> bool:
        at = registration.directory_of(other)
        return draft.is_active(other) and draft.brokers[other].has_directory(at)

    if not any(each != broker_id and draft.is_active(each) for each in draft.brokers):
        return True
    without = replace(draft.brokers[broker_id], log_dirs=_remaining(draft, broker_id, {directory}))
    return any(
        broker_id in each.isr
        and len(each.replicas) > 1
        and not without.has_directory(each.directory_of(broker_id))
        and not any(is_online(other, each) for other in each.isr if other != broker_id)
        for _, _, each in draft.partitions()
    )


def _remaining(draft: Draft, broker_id: int, lost: Collection[bytes]) -> tuple[bytes, ...]:
    present = draft.brokers[broker_id].log_dirs
    return tuple(each for each in present if each not in lost) or (LOST_DIRECTORY,)


def _lose_directories(draft: Draft, broker_id: int, offline: Collection[bytes]) -> None:
    """These directories of the broker have failed, as far as that is news."""
    lost = set(offline) & set(draft.brokers[broker_id].log_dirs) - {LOST_DIRECTORY}
    if not lost:
        return
    draft.change_broker(broker_id, log_dirs=_remaining(draft, broker_id, lost))
    broker = draft.brokers[broker_id]
    for _, key, registration in draft.partitions():
        is_lost = not broker.has_directory(registration.directory_of(broker_id))
        if is_lost and broker_id in registration.isr:
            _remove_from_isr(draft, key, broker_id)


def _remove_from_isr(draft: Draft, key: PartitionId, broker_id: int) -> None:
    def without(change: PartitionChange) -> None:
        change.isr = tuple(replica for replica in change.isr if replica != broker_id)

    draft.change(key, without)


def assign_directories(
    draft: Draft, broker_id: int, broker_epoch: int, wanted: Sequence[DirectoryAssignment]
) -> dict[DirectoryAssignment, ErrorCode]:
    """Record the directories of replicas; in a failed one they are offline. Raises STALE_BROKER_EPOCH."""
    broker = check_broker_epoch(draft, broker_id, broker_epoch)
    results = {}
    for each in wanted:
        results[each] = _assign_directory(draft, broker, each)
    return results


def _assign_directory(
    draft: Draft, broker: BrokerRegistration, wanted: DirectoryAssignment
) -> ErrorCode:
    if wanted.topic_id not in draft.image.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    key = (wanted.topic_id, wanted.partition)
    registration = draft.partition(key)
    if registration is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker_id = broker.broker_id
    if broker_id not in registration.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    is_without_log = not broker.has_directory(registration.directory_of(broker_id))

    def move(change: PartitionChange) -> None:
        change.directories = {broker_id: wanted.directory}
        if is_without_log or not broker.has_directory(wanted.directory):
            change.isr = tuple(replica for replica in change.isr if replica != broker_id)
        if is_without_log or wanted.directory == LOST_DIRECTORY:
            # Its replicas are where its old directory is; and one that is lost comes back as a new one.
            change.unclean_shutdown_replicas = (broker_id,)

    draft.change(key, move)
    return ErrorCode.NONE
