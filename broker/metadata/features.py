"""Pure: the features of the cluster by their levels (KIP-584): those that this broker supports, and the finalized ones.

A level names what the code does. Every request is served by the one level of transactions, so that cannot be changed;
nor can that of KRaft, of which there is none: it is shown because tools name it among the levels of a release.
What only the controller does (ELR), and APIs beside others (groups), can be turned off and on. Level 0 means that the
feature is off. A cluster whose log names no level uses the one that is given here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.metadata.events import SupportedFeature
from broker.metadata.image import MetadataImage

ELR_FEATURE = "eligible.leader.replicas.version"
GROUP_FEATURE = "group.version"
SHARE_FEATURE = "share.version"
STREAMS_FEATURE = "streams.version"
METADATA_FEATURE = "metadata.version"
KRAFT_FEATURE = "kraft.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The supported levels, and the default."""

    lowest: int
    highest: int
    level: int


FEATURES: Mapping[str, Feature] = {
    # Level 1 are the groups of KIP-848, beside the classic ones.
    GROUP_FEATURE: Feature(lowest=0, highest=1, level=1),
    # Level 1 are share groups (KIP-932), level 2 also their dead-letter topics (KIP-1191).
    SHARE_FEATURE: Feature(lowest=0, highest=2, level=2),
    # Level 1 are streams groups (KIP-1071).
    STREAMS_FEATURE: Feature(lowest=0, highest=1, level=1),
    # Replicas that left a small ISR may still lead, for they hold all that was committed (KIP-966).
    ELR_FEATURE: Feature(lowest=0, highest=1, level=1),
    # Level 2 are the transactions of KIP-890, whose clients wait for it to be finalized; older clients are served as
    # before.
    "transaction.version": Feature(lowest=0, highest=2, level=2),
    # Kafka 3.3-IV3 to 4.4-IV2, which 4.4.0 has. Tools tell by it which Kafka a cluster is; the lake's metadata do not
    # depend on it.
    METADATA_FEATURE: Feature(lowest=7, highest=33, level=33),
    # Level 1 are quorums that may change (KIP-853), as the brokers here that may be the controller do.
    KRAFT_FEATURE: Feature(lowest=0, highest=1, level=1),
}


CHANGEABLE = frozenset(
    {ELR_FEATURE, GROUP_FEATURE, METADATA_FEATURE, SHARE_FEATURE, STREAMS_FEATURE}
)
# Nothing works by their levels, so that brokers of the release before stay in the cluster while it is upgraded.
_WITHOUT_EFFECT = frozenset({METADATA_FEATURE, KRAFT_FEATURE})


def level_of(image: MetadataImage, name: str) -> int:
    """The level that the cluster uses."""
    return image.features.get(name, FEATURES[name].level)


def why_not(name: str, level: int) -> str | None:
    """Why a feature cannot be at this level, or None if it can."""
    feature = FEATURES.get(name)
    if feature is None:
        return f"The controller does not support the given feature: {name}"
    if name in CHANGEABLE:
        if feature.lowest <= level <= feature.highest:
            return None
        return f"the levels of {name} are {feature.lowest} to {feature.highest}"
    if level == feature.level:
        return None
    return f"{name} is at level {feature.level}, the only one that this broker works by"


def why_unsupported(image: MetadataImage, supported: Sequence[SupportedFeature]) -> str | None:
    """Why a broker that works at these levels cannot be in the cluster, or None."""
    for name in (each for each in FEATURES if each not in _WITHOUT_EFFECT):
        level = level_of(image, name)
        reason = why_level_unsupported(name, level, supported)
        if reason is not None:
            return (
                "Unable to register because the broker does not support finalized version "
                f"{level} of {name}: it {reason}."
            )
    return None


def why_level_unsupported(
    name: str, level: int, supported: Sequence[SupportedFeature]
) -> str | None:
    """Why a broker cannot work at this level, or None; one that reports no levels can work at all."""
    if not supported:
        return None
    lowest, highest = next(((s.lowest, s.highest) for s in supported if s.name == name), (0, 0))
    if lowest <= level <= highest:
        return None
    return f"only supports versions {lowest}-{highest}"


def supported_features() -> tuple[SupportedFeature, ...]:
    """The features that a broker of this release registers with."""
    return tuple(
        SupportedFeature(name=name, lowest=each.lowest, highest=each.highest)
        for name, each in FEATURES.items()
    )
