"""Pure: the features of the cluster by their levels (KIP-584): what this broker could do, and what is agreed on.

Rules of this file: a level stands here for what the code does, so it is not changed by a request: the levels that
clients are told are those that every request is served by. A level of 0 means that the feature is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The levels that could be agreed on, and the one that is."""

    lowest: int
    highest: int
    level: int


FEATURES: Mapping[str, Feature] = {
    # Classic groups; 1 would be the groups of KIP-848.
    "group.version": Feature(lowest=0, highest=0, level=0),
    # Level 2 are the transactions of KIP-890, whose clients wait to be told of it; older clients are served as before.
    "transaction.version": Feature(lowest=0, highest=2, level=2),
}


def why_not(name: str, level: int) -> str | None:
    """Why a feature cannot be at this level, or None where it is."""
    feature = FEATURES.get(name)
    if feature is None:
        return f"The controller does not support the given feature: {name}"
    if level == feature.level:
        return None
    return f"{name} is at level {feature.level}, the only one that this broker works by"
