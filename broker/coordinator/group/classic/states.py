"""Pure: the states of a group of the classic protocol, and the steps between them.

Rules of this file: the table has all steps, and any other step is our own bug. The values are Kafka's names: users see
them (ListGroups, DescribeGroups) and filter by them.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """Where a group is between two stable generations.

    Empty               no members; perhaps offsets
    PreparingRebalance  members are awaited: each must join (again), or is left behind
    CompletingRebalance all have joined, the leader's assignment is awaited
    Stable              each member has its assignment
    Dead                the group is gone; only DescribeGroups speaks of it
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# State -> the states from which it may be reached.
PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset({GroupState.EMPTY}),
}

# From here a group begins to rebalance when its members or their protocols change.
MAY_REBALANCE = PREDECESSORS[GroupState.PREPARING_REBALANCE]
