"""Pure: requests to be asked of two brokers, drawn from the declared messages of whatever this broker serves.

A case is determined by its API, version and number (the random seed), so that a failure can be repeated. Most requests
are valid except for one or two values; in some the bytes are damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from broker.registry import Served
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.plan import ArrayPlan, FieldPlan, PlannedField, StructPlan, plan
from kafka_ds.protocol.types import Primitive, fields_of, is_struct, message_info
from tests.peer.pair_values import pool_of

CLIENT_ID = "raw"
# A string that is made null as bytes: our own writer refuses to.
TO_BE_NULL = "\x01to be null\x01"
# How often a value is one that should not be there, by request.
ODDNESS = (0.0, 0.0, 0.15, 0.15, 0.4)
# Where Apache Kafka never answers if something is there twice, or is partly unknown.
SINGLE = (
    "JoinGroupRequest.protocols",
    "AlterConfigsRequest.resources",
    "WriteTxnMarkersRequest.markers",
    "WritableTxnMarker.topics",
)
# What is there twice in a request that is drawn again: topics, partitions, groups. Records would be, for good; and of
# two types of an entity Kafka takes one, where we refuse both.
TWICE = "twice"
NEVER_TWICE = ("Produce", "AlterClientQuotas")
# What an element of a list is about.
_IDENTITIES = {
    "name", "topic", "topic_id", "topic_name", "partition_index", "partition", "index", "group_id",
    "transactional_id", "resource_type", "resource_name", "path", "member_id", "feature", "entity_type",
}  # fmt: skip
DAMAGES = ("cut", "more", "null", "version", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request, with symbols for ids, and what is done to its bytes."""

    served: Served
    version: int
    number: int
    request: Any
    damage: str | None = None

    def __str__(self) -> str:
        damage = f", {self.damage}" if self.damage else ""
        text = repr(self.request)
        return f"{self.served.name} {self.version} #{self.number}{damage}: {text[:1500]}"


def asks_only(served: Served) -> bool:
    """Whether such a request changes nothing."""
    return served.name.startswith(("Describe", "List")) or served.name in (
        "ApiVersions", "Fetch", "FindCoordinator", "Metadata", "OffsetFetch", "OffsetForLeaderEpoch",
    )  # fmt: skip


def cases(served: Served, version: int, numbers: range) -> Iterator[Case]:
    """Requests of one version of an API, by their numbers."""
    for number in numbers:
        random = Random(zlib.crc32(f"{served.name} {version} {number}".encode()))
        twice = number % 16 == 11 and served.name not in NEVER_TWICE
        draw = _Draw(random, random.choice(ODDNESS), twice=twice)
        request = draw.struct(plan(served.request, version))
        damage = DAMAGES[number // 8 % len(DAMAGES)] if number % 8 == 7 else None
        damage = TWICE if twice else damage
        if damage == "null" and not draw.make_null(request, plan(served.request, version)):
            damage = "cut"
        if damage == "more" and not asks_only(served):
            damage = "cut"  # only one of both would do it
        yield Case(served=served, version=version, number=number, request=request, damage=damage)


def frame_of(case: Case, request: Any, correlation_id: int) -> bytes:
    """The bytes of a case; `request` is its own with ids for symbols."""
    frame = encode_request(request, case.version, correlation_id, CLIENT_ID)
    random = Random(case.number)
    match case.damage:
        case "cut":
            head = 16 + len(CLIENT_ID)
            body = frame[4 : random.randrange(head, len(frame))] if len(frame) > head else b""
        case "more":
            body = frame[4:] + bytes(random.randrange(4, 9))
        case "null":
            text = TO_BE_NULL.encode()
            plain = len(text).to_bytes(2, "big") + text
            compact = bytes([len(text) + 1]) + text
            is_plain = case.version not in message_info(type(request)).flexible
            body = (
                frame[4:].replace(plain, b"\xff\xff")
                if is_plain
                else frame[4:].replace(compact, b"\0")
            )
        case "version":
            last = message_info(type(request)).versions.last
            wrong = random.choice([last + 1, last + 100, -1])
            body = frame[4:6] + wrong.to_bytes(2, "big", signed=True) + frame[8:]
        case _:
            return frame
    return len(body).to_bytes(4, "big") + body


class _Draw:
    """Draws one request."""

    def __init__(self, random: Random, oddness: float, *, twice: bool) -> None:
        self._random = random
        self._oddness = oddness
        self._twice = twice

    def struct(self, struct: StructPlan) -> Any:
        values = {field.name: self._field(struct, field) for field in struct.fields}
        for field in struct.tagged:
            if self._random.random() < 0.3:
                values[field.name] = self._field(struct, field)
        return self._fitting(struct.cls(**values))

    def _field(self, struct: StructPlan, field: PlannedField) -> Any:
        kind = field.kind
        if field.nullable and not isinstance(kind, Primitive) and self._random.random() < 0.15:
            return None
        if isinstance(kind, ArrayPlan):
            count = self._random.choices((1, 2, 0, 3), (75, 12, 8, 5))[0]
            is_single = f"{struct.cls.__name__}.{field.name}" in SINGLE
            count = min(count, 1) if is_single else count
            drawn = [self._value(struct, field, kind.element) for _ in range(count)]
            if self._twice and not is_single:
                return drawn + drawn[:1]
            return list({_identity(each): each for each in drawn}.values())
        return self._value(struct, field, kind)

    def _value(self, struct: StructPlan, field: PlannedField, kind: FieldPlan) -> Any:
        if isinstance(kind, StructPlan):
            return self.struct(kind)
        pool = pool_of(struct.cls, field, kind)
        is_odd = pool.odd and self._random.random() < self._oddness
        value = self._random.choice(pool.odd if is_odd else pool.likely)
        if value is None and not field.nullable:
            value = pool.likely[0] if pool.likely[0] is not None else ""
        return value

    def _fitting(self, made: Any) -> Any:
        """What fields of one struct have to do with each other."""
        match type(made).__name__:
            case "MetadataRequestTopic":
                if made.name is not None and self._random.random() >= self._oddness:
                    made.topic_id = bytes(16)
            case "DeleteTopicState":
                if self._random.random() >= self._oddness:
                    if self._random.random() < 0.5:
                        made.topic_id = bytes(16)
                    else:
                        made.name = None
            case "CreatableTopic":
                if made.assignments and self._random.random() < 0.8:
                    made.num_partitions = made.replication_factor = -1
                    if self._random.random() < 0.5:
                        made.assignments = []
            case "JoinGroupRequest" if made.group_id:
                # A group that others are in would have us wait for them.
                made.group_id += f"-{self._random.randrange(10**9)}"
            case "ConsumerGroupHeartbeatRequest" if made.group_id:
                # Members live on for a while: each has a group to itself.
                made.group_id += f"-{self._random.randrange(10**9)}"
                if made.member_epoch == 0 and self._random.random() >= self._oddness:
                    made.topic_partitions = []
        return made

    def make_null(self, request: Any, struct: StructPlan) -> bool:
        """Mark a non-nullable string to be sent as null; returns whether there is one."""
        places = list(_strings(request, struct))
        if places:
            owner, name = self._random.choice(places)
            setattr(owner, name, TO_BE_NULL)
        return bool(places)


def _identity(value: Any) -> Any:
    if not is_struct(type(value)):
        return value
    names = [field.name for field in fields_of(type(value)) if field.name in _IDENTITIES]
    return tuple(getattr(value, name) for name in names) if names else id(value)


def _strings(owner: Any, struct: StructPlan) -> Iterator[tuple[Any, str]]:
    for field in struct.fields:
        value = getattr(owner, field.name)
        if isinstance(field.kind, StructPlan) and value is not None:
            yield from _strings(value, field.kind)
        elif isinstance(field.kind, ArrayPlan) and isinstance(field.kind.element, StructPlan):
            for element in value or ():
                yield from _strings(element, field.kind.element)
        elif (
            isinstance(field.kind, Primitive) and field.kind.name == "string" and not field.nullable
        ):
            yield owner, field.name
