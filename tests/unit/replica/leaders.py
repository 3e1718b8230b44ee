"""Leaders of one partition, brokers as the metadata know them, and fetches of followers, for several tests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.metadata.events import PartitionRegistration
from broker.replica.leader.effects import Effects, ProposeIsr
from broker.replica.leader.isr import Proposal
from broker.replica.leader.state import LeaderState

ALONE = PartitionRegistration(replicas=(1,), isr=(1,), leader=1, leader_epoch=4, partition_epoch=9)
THREE = PartitionRegistration(
    replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4, partition_epoch=9
)
LAG_MS = 1000
# When the leaders of these tests are elected, and where their logs end then.
T0 = 50_000
END = 10


@dataclass
class LeadingBroker:
    """What the metadata say of a broker."""

    broker_epoch: int
    fenced: bool = False
    in_controlled_shutdown: bool = False


def brokers() -> dict[int, LeadingBroker]:
    """Three brokers, all of them up."""
    return {1: LeadingBroker(101), 2: LeadingBroker(102), 3: LeadingBroker(103)}


def leader(
    registration: PartitionRegistration,
    *,
    end: int = END,
    high: int = 5,
    min_isr: int = 1,
    known: Mapping[int, LeadingBroker] | None = None,
) -> LeaderState:
    """A leader that has yet to be elected."""
    return LeaderState(
        registration,
        node_id=1,
        log_end_offset=end,
        high_watermark=high,
        min_insync_replicas=min_isr,
        lag_ms_max=LAG_MS,
        brokers=brokers() if known is None else known,
    )


def elected(
    registration: PartitionRegistration,
    *,
    end: int = END,
    high: int = 5,
    min_isr: int = 1,
    known: Mapping[int, LeadingBroker] | None = None,
) -> LeaderState:
    """A leader whose epoch begins at the end of its log."""
    partition = leader(registration, end=end, high=high, min_isr=min_isr, known=known)
    partition.elected(end, T0)
    return partition


def fetch(
    partition: LeaderState,
    replica: int,
    offset: int,
    *,
    now_ms: int = T0,
    broker_epoch: int | None = None,
    log_start_offset: int = 0,
) -> Effects:
    """A fetch by a follower, in its right broker epoch unless told otherwise."""
    return partition.fetched(
        replica,
        fetch_offset=offset,
        log_start_offset=log_start_offset,
        leader_log_end_offset=partition.effective_end_offset,
        now_ms=now_ms,
        broker_epoch=100 + replica if broker_epoch is None else broker_epoch,
    )


def changed(registration: PartitionRegistration, **changes: object) -> PartitionRegistration:
    """The next registration of a partition."""
    epoch = registration.partition_epoch + 1
    return replace(registration, partition_epoch=epoch, **changes)  # type: ignore[arg-type]


def proposal_of(effects: Effects) -> Proposal:
    """The one proposal among the effects."""
    (effect,) = [each for each in effects if isinstance(each, ProposeIsr)]
    return effect.proposal
