"""Pure: the entity filter of DescribeClientQuotas (KIP-546).

Each component selects entities that have its type; `strict` excludes entities with further types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from broker.metadata.quota_names import CLIENT_ID, IP, USER
from kafka_ds.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.metadata.security_image import QuotaEntity


class MatchType(IntEnum):
    """How a component matches names."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaComponentFilter:
    """One component of the filter: an entity type and its names."""

    entity_type: str
    match_type: int
    match: str | None

    def matches(self, name: str | None) -> bool:
        """Whether an entity of this name matches; None is the default entity."""
        return self.match_type == MatchType.SPECIFIED or name == self.match


def check_filter(components: Sequence[QuotaComponentFilter]) -> None:
    """Raises INVALID_REQUEST, or UNSUPPORTED_VERSION for an entity type that Kafka does not define."""
    types = [each.entity_type for each in components]
    for each in components:
        if not each.entity_type:
            _refuse("Unexpected empty filter component entity type.")
        if each.entity_type not in (USER, CLIENT_ID, IP):
            message = f"Custom entity type '{each.entity_type}' not supported"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        if each.match_type == MatchType.EXACT and each.match is None:
            _refuse("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if each.match_type == MatchType.DEFAULT and each.match is not None:
            _refuse("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
        if each.match_type == MatchType.SPECIFIED and each.match is not None:
            _refuse("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
        if each.match_type not in frozenset(MatchType):
            _refuse(f"Unknown match type {each.match_type}")
    if len(set(types)) < len(types):
        _refuse("Entity type cannot appear more than once in the filter.")
    if IP in types and len(types) > 1:
        _refuse(
            "Invalid entity filter component combination, IP filter component should not be used "
            "with user or clientId filter component."
        )


def is_meant(
    entity: QuotaEntity, components: Sequence[QuotaComponentFilter], *, strict: bool
) -> bool:
    """Whether the filter selects this entity."""
    if strict and len(entity) != len(components):
        return False
    names = {each.entity_type: each.entity_name for each in entity}
    return all(
        each.entity_type in names and each.matches(names[each.entity_type]) for each in components
    )


def _refuse(message: str) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)
