"""Messages of random content, drawn from the plans that the codecs are compiled from."""

import re
from collections.abc import Sequence
from random import Random
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import OWN_KEYS_FROM, OWN_TAGS_FROM, REQUESTS, RESPONSES
from kafka_ds.protocol.plan import ArrayPlan, FieldPlan, PlannedField, StructPlan, plan
from kafka_ds.protocol.types import Primitive, message_info

EVERY_MESSAGE = [cls for table in (REQUESTS, RESPONSES) for _, cls in sorted(table.items())]
# Those that Kafka has too.
MESSAGES = [cls for cls in EVERY_MESSAGE if (message_info(cls).key or 0) < OWN_KEYS_FROM]
ALL_VERSIONS = [
    (cls, version)
    for cls in EVERY_MESSAGE
    for version in range(message_info(cls).versions.first, message_info(cls).versions.last + 1)
]

LETTERS = "abcXYZ019._-äßλ漢🜚"


# The versions of Kafka 4.4, which other implementations do not have yet.
NEWER = {
    "ApiVersions": 5,
    "DeleteGroups": 3,
    "StreamsGroupDescribe": 1,
    "StreamsGroupHeartbeat": 1,
    "TxnOffsetCommit": 6,
}


def versions_of(cls: type) -> list[int]:
    """But for those of Kafka 4.4, which other clients have not yet."""
    newest = NEWER.get(re.sub("(Request|Response)$", "", cls.__name__))
    return [version for other, version in ALL_VERSIONS if other is cls and version != newest]


# Those of Kafka before 4.4, which other implementations know, too.
OLDER_CODES = [code for code in ErrorCode if code <= ErrorCode.SHARE_SESSION_LIMIT_REACHED]
# Mostly small, sometimes around the size where a compact length takes a second byte.
SIZES = [0, 1, 5, 20, 125, 126, 127, 128, 300]


def random_message(
    cls: type,
    version: int,
    random: Random,
    *,
    elements_max: int = 3,
    sizes: Sequence[int] = SIZES,
) -> Any:
    """A message whose fields hold anything that the wire can carry in this version."""
    return Draw(random, elements_max, sizes).struct(plan(cls, version))


class Draw:
    """Draws values of every kind."""

    def __init__(self, random: Random, elements_max: int, sizes: Sequence[int]) -> None:
        self.random = random
        self.elements_max = elements_max
        self.sizes = sizes

    def struct(self, struct: StructPlan) -> Any:
        values = {field.name: self.field(field) for field in struct.fields}
        for field in struct.tagged:
            # Other implementations need not know those that Kafka does not have.
            if (field.tag or 0) < OWN_TAGS_FROM and self.random.random() < 0.5:
                values[field.name] = self.field(field)
        return struct.cls(**values)

    def field(self, field: PlannedField) -> Any:
        if field.nullable and self.random.random() < 0.25:
            return None
        return self.value(field.kind, field.name)

    def value(self, kind: FieldPlan, name: str) -> Any:
        if isinstance(kind, ArrayPlan):
            count = self.random.randint(0, self.elements_max)
            return [self.value(kind.element, name) for _ in range(count)]
        if isinstance(kind, StructPlan):
            return self.struct(kind)
        match kind.name:
            case "boolean":
                return self.random.random() < 0.5
            case "string":
                return random_text(self.random, self.sizes)
            case "f64":
                return self.random.choice([0.0, 0.5, -1e300, self.random.uniform(-1e9, 1e9)])
            case "uuid":
                return self.random.randbytes(16)
            case "bytes":
                return self.random.randbytes(self.random.choice(self.sizes))
            case "records":
                return memoryview(self.random.randbytes(self.random.choice(self.sizes) * 5))
        return self.integer(kind, name)

    def integer(self, kind: Primitive, name: str) -> int:
        random = self.random
        if name.endswith("error_code"):
            return int(random.choice(OLDER_CODES))
        if kind.name == "i64" and name.endswith(("_ms", "timestamp")):
            return random.randint(0, 2**41)  # kio makes dates of these
        bits = kind.size * 8
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if kind.name.startswith("u"):
            low, high = 0, 2**bits - 1
        return random.choice([0, 1, low, high, random.randint(low, high)])


def random_text(random: Random, sizes: Sequence[int] = SIZES) -> str:
    return "".join(random.choices(LETTERS, k=random.choice(sizes)))
