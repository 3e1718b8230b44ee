"""Pure: access control lists: ACLs, the ACLs that a filter matches, those that apply to a resource.

- Numbers are those of Kafka's protocol. UNKNOWN stands for what only a newer client knows, and is refused. ANY and
  MATCH occur only in filters.
- A resource is given by its full name (literal; `*` is all names) or by a prefix of it (prefixed, KIP-290).
- There is one cluster resource, named `kafka-cluster`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from broker.principal import principal_of

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    """What an ACL may be about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL, or a filter, names resources."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What a principal may do."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One ACL: whether `principal` (`User:alice`, `User:*`), from `host` (or `*`), may do this to these resources."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def why_invalid(self) -> str | None:
        """Why such an ACL cannot be created, as an error message."""
        if self.resource_type not in _RESOURCE_TYPES:
            return f"Invalid resourceType {_name(ResourceType, self.resource_type)}"
        if self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            return f"Invalid patternType {_name(PatternType, self.pattern_type)}"
        if self.operation not in _OPERATIONS:
            return f"Invalid operation {_name(AclOperation, self.operation)}"
        if self.permission not in (Permission.DENY, Permission.ALLOW):
            return f"Invalid permissionType {_name(Permission, self.permission)}"
        if not self.resource_name:
            return "Resource name should not be empty"
        if self.resource_type == ResourceType.CLUSTER and self.resource_name != CLUSTER_NAME:
            return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        try:
            principal_of(self.principal)
        except ValueError as error:
            return f"Could not parse principal: {error}"
        return None


_RESOURCE_TYPES = frozenset(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
_OPERATIONS = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter of ACLs; None and ANY match all, MATCH those that concern a resource of this name."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def why_invalid(self) -> str | None:
        """Which of its fields is not a known number of Kafka's."""
        for kind, value in (
            (ResourceType, self.resource_type),
            (PatternType, self.pattern_type),
            (AclOperation, self.operation),
            (Permission, self.permission),
        ):
            if value == 0 or value not in frozenset(kind):
                return f"Unknown {kind.__name__} in the filter: {value}"
        return None

    def matches(self, acl: Acl) -> bool:
        """Whether the filter matches this ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        name, kind = self.resource_name, self.pattern_type
        if kind not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None or name == acl.resource_name:
            return True
        if kind != PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name == WILDCARD
        return name.startswith(acl.resource_name)


class AclIndex:
    """All ACLs, indexed so that those of one resource are found without a look at the others."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._literal: dict[tuple[int, str], list[Acl]] = defaultdict(list)
        self._prefixed: dict[tuple[int, str], list[Acl]] = defaultdict(list)
        self._by_type: dict[int, list[Acl]] = defaultdict(list)
        # How long prefixes are, by type: names are the clients' own, and may be long.
        self._lengths: dict[int, set[int]] = defaultdict(set)
        for acl in acls:
            is_literal = acl.pattern_type == PatternType.LITERAL
            names = self._literal if is_literal else self._prefixed
            names[acl.resource_type, acl.resource_name].append(acl)
            self._by_type[acl.resource_type].append(acl)
            if not is_literal:
                self._lengths[acl.resource_type].add(len(acl.resource_name))

    def of(self, resource_type: int, name: str) -> Iterator[Acl]:
        """The ACLs that concern this resource."""
        yield from _at(self._literal, resource_type, name)
        if name != WILDCARD:
            yield from _at(self._literal, resource_type, WILDCARD)
        for end in self._lengths.get(resource_type, ()):
            if end <= len(name):
                yield from _at(self._prefixed, resource_type, name[:end])

    def of_type(self, resource_type: int) -> tuple[Acl, ...]:
        """The ACLs about resources of this type."""
        return tuple(self._by_type.get(resource_type, ()))


def _at(names: Mapping[tuple[int, str], list[Acl]], kind: int, name: str) -> Iterable[Acl]:
    return names.get((kind, name), ())


def _name(kind: type[IntEnum], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return str(value)
