"""Pure: Kafka's StandardAuthorizer: authorization by ACLs (KIP-801).

Super users may do everything. Otherwise a DENY wins over every ALLOW, and without an ALLOW the request is denied; if no
ACL matches the resource, `allow.everyone.if.no.acl.found` decides. READ, WRITE, DELETE and ALTER imply DESCRIBE, and
ALTER_CONFIGS implies DESCRIBE_CONFIGS. Principals are compared as text, hosts as addresses. Decisions are cached until
the ACLs change: at most DECISIONS_MAX, and none for names longer than a topic's may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from broker.metadata.acls import (
    WILDCARD,
    Acl,
    AclIndex,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from broker.metadata.topic_names import NAME_LENGTH_MAX
from broker.principal import USER, Principal
from broker.transport.addresses import one_text

DECISIONS_MAX = 100_000
# The operations that imply an operation.
_IMPLY = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
# Kafka's stand-in for "a resource that no ACL names" in authorizeByResourceType.
_ANY_NAME = "hardcode"

_Key = tuple[Principal, str, int, int, str]


class Authorizer:
    """Decides by the ACLs of the latest `replace`."""

    def __init__(
        self,
        super_users: Iterable[Principal],
        *,
        allows_unlisted: bool,
        denied: Callable[[Principal, str, int, int, str], None] | None = None,
    ) -> None:
        """`allows_unlisted` is allow.everyone.if.no.acl.found; `denied` is called with each new denial."""
        self._super_users = frozenset(super_users)
        self._allows_unlisted = allows_unlisted
        self._denied = denied
        self._index = AclIndex(())
        self.decisions: dict[_Key, bool] = {}
        # Denials that `denied` was not called with yet.
        self._unlogged_denials: set[_Key] = set()
        # How many of the answers of `allows` were such.
        self.allowed = self.refused = 0

    def replace(self, acls: Iterable[Acl]) -> None:
        """Replace all ACLs."""
        self._index = AclIndex(replace(acl, host=one_text(acl.host)) for acl in acls)
        self._forget()

    def _forget(self) -> None:
        self.decisions.clear()
        self._unlogged_denials.clear()

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: int,
        resource_type: int,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        """Whether this principal may do this from this host, written as `one_text` writes it.

        `log_if_denied` False: a denial only filters the response, or another permission is sufficient.
        """
        key = (principal, host, operation, resource_type, name)
        decided = self.decisions.get(key)
        if decided is None:
            decided = principal in self._super_users or self._decide(*key)
            if len(self.decisions) >= DECISIONS_MAX:
                self._forget()
            is_kept = len(name) <= NAME_LENGTH_MAX
            if is_kept:
                self.decisions[key] = decided
            if not decided and (is_kept or log_if_denied):
                self._unlogged_denials.add(key)
        if not decided and log_if_denied and key in self._unlogged_denials:
            self._unlogged_denials.remove(key)
            if self._denied is not None:
                self._denied(*key)
        if decided:
            self.allowed += 1
        else:
            self.refused += 1
        return decided

    def _decide(
        self, principal: Principal, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        texts = _texts_of(principal)
        implying = _IMPLY.get(AclOperation(operation), ())
        is_listed = is_allowed = False
        for acl in self._index.of(resource_type, name):
            is_listed = True
            if acl.principal not in texts or acl.host not in (host, WILDCARD):
                continue
            meant = acl.operation in (operation, AclOperation.ALL)
            if acl.permission == Permission.DENY and meant:
                return False
            if acl.permission == Permission.ALLOW and (meant or acl.operation in implying):
                is_allowed = True
        return is_allowed or (not is_listed and self._allows_unlisted)

    def allows_any(
        self, principal: Principal, host: str, operation: int, resource_type: int
    ) -> bool:
        """Whether there is a resource of this type to which this principal may do it (KIP-679)."""
        if principal in self._super_users:
            return True
        texts = _texts_of(principal)
        allowed: list[Acl] = []
        denied: set[tuple[int, str]] = set()
        for acl in self._index.of_type(resource_type):
            if (
                acl.principal in texts
                and acl.host in (host, WILDCARD)
                and acl.operation in (operation, AclOperation.ALL)
            ):
                if acl.permission == Permission.ALLOW:
                    allowed.append(acl)
                else:
                    denied.add((acl.pattern_type, acl.resource_name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        if any(not _is_dominated(acl, denied) for acl in allowed):
            return True
        return self._decide(principal, host, operation, resource_type, _ANY_NAME)

    def operations(
        self, principal: Principal, host: str, resource_type: int, name: str
    ) -> tuple[AclOperation, ...]:
        """The operations of the resource's type that this principal is authorized for (KIP-430)."""
        return tuple(
            operation
            for operation in OPERATIONS[ResourceType(resource_type)]
            if self.allows(principal, host, operation, resource_type, name, log_if_denied=False)
        )


# The operations of each resource type.
OPERATIONS = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}


def operations_bits(operations: Iterable[int]) -> int:
    """Operations as a bit field, for Metadata and other responses (KIP-430)."""
    return sum(1 << operation for operation in operations)


def _texts_of(principal: Principal) -> tuple[str, str]:
    return str(principal), f"{USER}:{WILDCARD}"


def _is_dominated(acl: Acl, denied: set[tuple[int, str]]) -> bool:
    """Whether a DENY covers everything that this ACL allows."""
    name = acl.resource_name
    if acl.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))
