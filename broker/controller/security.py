"""Pure: the active controller's decisions about ACLs, client quotas and SCRAM credentials.

- A refusal never stops the others of the same request; all granted changes are in one commit.
- A change that holds already is granted without an event: an ACL that is created twice is one ACL.
- One credential of a user changes at a time. The credential itself is not seen here: the requesting broker has put it
  into the lake, and the event names the object.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.controller.draft import ControllerResult
from broker.metadata.acls import Acl, AclFilter
from broker.metadata.events import (
    AclDeleted,
    ClientQuotaChanged,
    Event,
    QuotaComponent,
    ScramCredentialChanged,
    ScramCredentialDeleted,
)
from broker.metadata.quota_names import CLIENT_ID, CLIENT_QUOTAS, IP, IP_QUOTAS, USER
from broker.metadata.security_image import (
    QuotaEntity,
    SecurityImage,
    acl_created,
    in_order,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.types import MAX_I64

# The most that one request may change, as in Kafka.
CHANGES_PER_REQUEST_MAX = 10_000
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384

# -- ACLs -----------------------------------------------------------------------------------------


def create_acls(
    image: SecurityImage, wanted: Sequence[Acl], new_uuid: Callable[[], bytes]
) -> ControllerResult[list[KafkaError | None]]:
    """Make these ACLs; the result has a refusal, or None, for each."""
    _check_count(len(wanted))
    present = set(image.acls.values())
    events: list[Event] = []
    results: list[KafkaError | None] = []
    for acl in wanted:
        reason = acl.why_invalid()
        if reason is not None:
            results.append(KafkaError(ErrorCode.INVALID_REQUEST, reason))
            continue
        results.append(None)
        if acl not in present:
            present.add(acl)
            events.append(acl_created(new_uuid(), acl))
    return ControllerResult(events=tuple(events), result=results)


def delete_acls(
    image: SecurityImage, filters: Sequence[AclFilter]
) -> ControllerResult[list[list[Acl] | KafkaError]]:
    """Delete the ACLs that these filters match; the result has the matches of each."""
    deleted: dict[bytes, None] = {}
    results: list[list[Acl] | KafkaError] = []
    for each in filters:
        reason = each.why_invalid()
        if reason is not None:
            results.append(KafkaError(ErrorCode.INVALID_REQUEST, reason))
            continue
        found = {acl_id: acl for acl_id, acl in image.acls.items() if each.matches(acl)}
        deleted |= dict.fromkeys(found)
        results.append(list(found.values()))
    _check_count(len(deleted))
    return ControllerResult(
        events=tuple(AclDeleted(acl_id=acl_id) for acl_id in deleted), result=results
    )


def _check_count(count: int) -> None:
    if count > CHANGES_PER_REQUEST_MAX:
        message = f"one request changes no more than {CHANGES_PER_REQUEST_MAX} ACLs"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


# -- quotas (KIP-546) -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """A request's changes of one entity's quotas: values by name, None to remove one."""

    entity: Sequence[QuotaComponent]
    values: Sequence[tuple[str, float | None]]


def alter_quotas(
    image: SecurityImage, wanted: Sequence[QuotaAlteration], *, validate_only: bool
) -> ControllerResult[list[KafkaError | None]]:
    """Change the quotas of each entity as a whole, or not at all."""
    counts = Counter(in_order(each.entity) for each in wanted)
    events: list[Event] = []
    results: list[KafkaError | None] = []
    for each in wanted:
        entity = in_order(each.entity)
        try:
            if counts[entity] > 1:
                message = "Each client quota entity must appear at most once."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            _check_entity(entity)
            events.extend(_changes(entity, each.values, image.quotas.get(entity, {})))
        except KafkaError as refusal:
            results.append(refusal)
        else:
            results.append(None)
    return ControllerResult(events=() if validate_only else tuple(events), result=results)


def _check_entity(entity: QuotaEntity) -> None:
    types = [each.entity_type for each in entity]
    reason = None
    if not entity:
        reason = "Invalid empty client quota entity."
    elif unknown := [each for each in types if each not in (USER, CLIENT_ID, IP)]:
        reason = f"Unhandled client quota entity type: {unknown[0]}"
    elif len(set(types)) < len(types):
        reason = "Invalid client quota entity, contains a duplicate entity type."
    elif IP in types and len(types) > 1:
        reason = (
            "Invalid quota entity combination, IP entity should not be used with User or ClientId"
        )
    else:
        for each in entity:
            if each.entity_name == "":
                reason = f"Empty {each.entity_type} not supported."
            elif each.entity_type == IP and each.entity_name and not _is_address(each.entity_name):
                reason = f"{each.entity_name} is not a valid IP address."
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _changes(
    entity: QuotaEntity, values: Sequence[tuple[str, float | None]], present: dict[str, float]
) -> list[ClientQuotaChanged]:
    allowed = IP_QUOTAS if entity[0].entity_type == IP else CLIENT_QUOTAS
    changes = {}
    for name, value in values:
        # An impossible quota may still be removed.
        if name not in allowed and value is not None:
            message = f"Invalid configuration key {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if name in changes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} appears twice in the request")
        if value is not None:
            reason = _why_no_value(name, value, is_whole=allowed[name])
            if reason is not None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
        changes[name] = value
    return [
        ClientQuotaChanged(entity=entity, name=name, value=value)
        for name, value in changes.items()
        if present.get(name) != value
    ]


def _why_no_value(name: str, value: float, *, is_whole: bool) -> str | None:
    if not math.isfinite(value) or value <= 0:
        return f"Quota {name} must be greater than 0"
    if is_whole and (value != math.floor(value) or value > MAX_I64):
        return f"Configuration {name} must be a whole number"
    return None


# -- SCRAM credentials (KIP-554) ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDeletion:
    """Delete a user's credential for this mechanism; None: an unknown mechanism."""

    user: str
    mechanism: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """Set a user's credential to this object of the lake."""

    user: str
    mechanism: str | None
    iterations: int
    credential: str
    is_complete: bool = True
    """Whether there are a salt, and a password that was salted with it."""


def alter_scram(
    image: SecurityImage,
    deletions: Sequence[ScramDeletion],
    upsertions: Sequence[ScramUpsertion],
) -> ControllerResult[dict[str, KafkaError | None]]:
    """Change one credential of each user; the result has a refusal, or None, for each user.

    As in KRaft, by user and not by mechanism: a second change of a user refuses both, of any kind, and a user's first
    refusal stands.
    """
    alterations: list[ScramDeletion | ScramUpsertion] = [*deletions, *upsertions]
    results: dict[str, KafkaError | None] = {}
    for each in alterations:
        if each.user not in results:
            results[each.user] = _why_not(image, each)
        elif results[each.user] is None:
            message = "A user credential cannot be altered twice in the same request"
            results[each.user] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
    events: list[Event] = []
    for each in alterations:
        if results[each.user] is not None:
            continue
        assert each.mechanism is not None
        if isinstance(each, ScramDeletion):
            events.append(ScramCredentialDeleted(user=each.user, mechanism=each.mechanism))
        else:
            events.append(
                ScramCredentialChanged(
                    user=each.user,
                    mechanism=each.mechanism,
                    iterations=each.iterations,
                    credential=each.credential,
                )
            )
    return ControllerResult(events=tuple(events), result=results)


def _why_not(image: SecurityImage, each: ScramDeletion | ScramUpsertion) -> KafkaError | None:
    if not each.user:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if each.mechanism is None:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(each, ScramDeletion):
        if (each.user, each.mechanism) in image.credentials:
            return None
        message = "Attempt to delete a user credential that does not exist"
        return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    reason = None
    if each.iterations < ITERATIONS_MIN:
        reason = "Too few iterations"
    elif each.iterations > ITERATIONS_MAX:
        reason = "Too many iterations"
    elif not each.is_complete:
        reason = "Salt and salted password must not be empty"
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason) if reason else None
