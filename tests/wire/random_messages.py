"""Messages of random content, drawn from the plans that the codecs are compiled from."""

from random import Random
from typing import Any

from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import REQUESTS, RESPONSES
from kafka_ds.wire.plan import ArrayPlan, Kind, PlannedField, StructPlan, plan
from kafka_ds.wire.types import Primitive, message_info

MESSAGES = [cls for table in (REQUESTS, RESPONSES) for _, cls in sorted(table.items())]
ALL_VERSIONS = [
    (cls, version)
    for cls in MESSAGES
    for version in range(message_info(cls).versions.first, message_info(cls).versions.last + 1)
]

LETTERS = "abcXYZ019._-äßλ漢🜚"


def random_message(cls: type, version: int, random: Random, *, elements_max: int = 3) -> Any:
    """A message whose fields hold anything that the wire can carry in this version."""
    return random_struct(plan(cls, version), random, elements_max)


def random_struct(struct: StructPlan, random: Random, elements_max: int) -> Any:
    values = {field.name: random_field(field, random, elements_max) for field in struct.fields}
    for field in struct.tagged:
        if random.random() < 0.5:
            values[field.name] = random_field(field, random, elements_max)
    return struct.cls(**values)


def random_field(field: PlannedField, random: Random, elements_max: int) -> Any:
    if field.nullable and random.random() < 0.25:
        return None
    return random_value(field.kind, field.name, random, elements_max)


def random_value(kind: Kind, name: str, random: Random, elements_max: int) -> Any:
    if isinstance(kind, ArrayPlan):
        count = random.randint(0, elements_max)
        return [random_value(kind.element, name, random, elements_max) for _ in range(count)]
    if isinstance(kind, StructPlan):
        return random_struct(kind, random, elements_max)
    return random_primitive(kind, name, random)


def random_primitive(kind: Primitive, name: str, random: Random) -> Any:
    match kind.name:
        case "boolean":
            return random.random() < 0.5
        case "string":
            return random_text(random)
        case "uuid":
            return random.randbytes(16)
        case "bytes":
            return random.randbytes(random_size(random))
        case "records":
            return memoryview(random.randbytes(random_size(random) * 5))
        case "f64":
            return random.uniform(-1e300, 1e300)
    return random_integer(kind, name, random)


def random_text(random: Random) -> str:
    return "".join(random.choice(LETTERS) for _ in range(random_size(random)))


def random_size(random: Random) -> int:
    """Mostly small, sometimes around the size where a compact length takes a second byte."""
    return random.choice([0, 1, 5, 20, 125, 126, 127, 128, 300])


def random_integer(kind: Primitive, name: str, random: Random) -> int:
    if name.endswith("error_code"):
        return int(random.choice(list(ErrorCode)))
    if kind.name == "i64" and name.endswith(("_ms", "timestamp")):
        return random.randint(0, 2**41)  # kio makes dates of these
    bits = kind.size * 8
    low, high = (0, 2**bits - 1) if kind.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return random.choice([0, 1, low, high, random.randint(low, high)])
