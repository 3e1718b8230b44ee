"""Pure: which replica a consumer should read from (KIP-392).

- Only the leader chooses, among followers that are in sync and hold the offset: a consumer must not be sent to one that
  has fallen behind. The leader itself is never named: it is the default.
- `RackAwareReplicaSelector` picks the leader if it is in the consumer's rack, else, of the others in that rack, the one
  with the most records, then the one that was caught up last, then the one with the greatest number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.config.broker import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from broker.metadata.image import BrokerRegistration
from broker.replica.leader.state import LeaderState

# (the leader's view, the brokers by number, the consumer's rack, its offset, its listener) -> a follower, or None.
Selector = Callable[[LeaderState, Mapping[int, BrokerRegistration], str, int, str], int | None]


def select_in_rack(
    leader: LeaderState,
    brokers: Mapping[int, BrokerRegistration],
    rack: str,
    offset: int,
    listener: str,
) -> int | None:
    """The follower in this rack to read from, if there is a better one than the leader.

    It must be reachable by the consumer's `listener`.
    """
    if not rack or _rack_of(brokers, leader.node_id) == rack:
        return None
    best: tuple[int, int, int] | None = None
    for replica, follower in leader.in_sync_followers(offset):
        broker = brokers.get(replica)
        if broker is None or broker.fenced or broker.rack != rack:
            continue
        if broker.endpoint(listener) is None:
            continue
        rank = (follower.log_end_offset, follower.last_caught_up_ms, replica)
        best = rank if best is None else max(best, rank)
    return best[-1] if best is not None else None


def _rack_of(brokers: Mapping[int, BrokerRegistration], broker_id: int) -> str | None:
    broker = brokers.get(broker_id)
    return broker.rack if broker is not None else None


SELECTORS: Mapping[str | None, Selector | None] = {
    None: None,
    LEADER_SELECTOR: None,
    RACK_AWARE_SELECTOR: select_in_rack,
}
