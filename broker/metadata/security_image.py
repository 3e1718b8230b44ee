"""Pure: ACLs, client quotas, users with SCRAM credentials and delegation tokens, as the metadata log describes them.

Part of `MetadataImage`, and by its rules; the credentials themselves are not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from broker.metadata.acls import Acl
from broker.metadata.events import (
    AclCreated,
    AclDeleted,
    ClientQuotaChanged,
    DelegationTokenChanged,
    DelegationTokenDeleted,
    Event,
    QuotaComponent,
    ScramCredentialChanged,
    ScramCredentialDeleted,
)

# A quota's entity: its parts in the order of their types, each type once.
QuotaEntity: TypeAlias = tuple[QuotaComponent, ...]

SECURITY_EVENTS: tuple[type[Event], ...] = (
    AclCreated,
    AclDeleted,
    ClientQuotaChanged,
    ScramCredentialChanged,
    ScramCredentialDeleted,
    DelegationTokenChanged,
    DelegationTokenDeleted,
)


def in_order(entity: Iterable[QuotaComponent]) -> QuotaEntity:
    """An entity as it is stored: its parts sorted by type."""
    return tuple(sorted(entity, key=lambda each: (each.entity_type, each.entity_name or "")))


class ScramEntry(NamedTuple):
    """A user's credential: the object of the lake that holds it."""

    iterations: int
    credential: str


class SecurityImage:
    """ACLs, quotas, users with SCRAM credentials, and delegation tokens."""

    __slots__ = ("acls", "credentials", "quotas", "tokens")

    def __init__(self) -> None:
        self.acls: dict[bytes, Acl] = {}
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        # By user and mechanism.
        self.credentials: dict[tuple[str, str], ScramEntry] = {}
        # By id; a token is what its last event says.
        self.tokens: dict[str, DelegationTokenChanged] = {}

    def copy(self) -> SecurityImage:
        """The same state, to be changed without changing this one."""
        twin = SecurityImage()
        twin.acls.update(self.acls)
        twin.quotas = {entity: dict(values) for entity, values in self.quotas.items()}
        twin.credentials.update(self.credentials)
        twin.tokens.update(self.tokens)
        return twin

    def replay(self, event: Event) -> bool:
        """Apply the event; False if it does not fit the state."""
        match event:
            case AclCreated():
                if event.acl_id in self.acls:
                    return False
                self.acls[event.acl_id] = acl_of(event)
            case AclDeleted():
                return self.acls.pop(event.acl_id, None) is not None
            case ClientQuotaChanged():
                self._replay_quota(event)
            case ScramCredentialChanged():
                entry = ScramEntry(event.iterations, event.credential)
                self.credentials[event.user, event.mechanism] = entry
            case ScramCredentialDeleted():
                return self.credentials.pop((event.user, event.mechanism), None) is not None
            case DelegationTokenChanged():
                self.tokens[event.token_id] = event
            case DelegationTokenDeleted():
                return self.tokens.pop(event.token_id, None) is not None
            case _:
                raise AssertionError(f"no event of security: {event!r}")
        return True

    def _replay_quota(self, event: ClientQuotaChanged) -> None:
        values = self.quotas.setdefault(event.entity, {})
        if event.value is None:
            values.pop(event.name, None)
            if not values:
                del self.quotas[event.entity]
        else:
            values[event.name] = event.value

    def as_events(self) -> Iterator[Event]:
        """The whole state, as a snapshot has it."""
        for acl_id, acl in self.acls.items():
            yield acl_created(acl_id, acl)
        for entity, values in self.quotas.items():
            for name, value in values.items():
                yield ClientQuotaChanged(entity=entity, name=name, value=value)
        for (user, mechanism), entry in self.credentials.items():
            yield ScramCredentialChanged(
                user=user,
                mechanism=mechanism,
                iterations=entry.iterations,
                credential=entry.credential,
            )
        yield from self.tokens.values()


def acl_of(event: AclCreated) -> Acl:
    """The event's content without its id."""
    return Acl(
        resource_type=event.resource_type,
        resource_name=event.resource_name,
        pattern_type=event.pattern_type,
        principal=event.principal,
        host=event.host,
        operation=event.operation,
        permission=event.permission,
    )


def acl_created(acl_id: bytes, acl: Acl) -> AclCreated:
    """The event that creates an ACL with this id."""
    return AclCreated(
        acl_id=acl_id,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )
