"""Pure: the states of a group of the classic protocol, and the steps between them.

Rules of this file: the table has all steps, and any other step is our own bug. The values are Kafka's names: users see
them (ListGroups, DescribeGroups) and filter by them.
"""

from __future__ import annotations

from enum import Enum


class ClassicGroupState(Enum):
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
PREDECESSORS: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.EMPTY, ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.COMPLETING_REBALANCE}),
    ClassicGroupState.DEAD: frozenset({ClassicGroupState.EMPTY}),
}

# From here a group begins to rebalance when its members or their protocols change.
MAY_REBALANCE = PREDECESSORS[ClassicGroupState.PREPARING_REBALANCE]
