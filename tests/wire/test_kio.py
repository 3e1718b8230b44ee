"""kio, an independent implementation generated from Kafka's definitions, reads what we write and the reverse."""

import dataclasses
import datetime
import io
import types
import typing
import uuid
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.messages import REQUESTS
from kafka_ds.protocol.types import message_info
from tests.wire.random_messages import (
    MESSAGES,
    OLDER_CODES,
    SIZES,
    random_message,
    random_text,
    versions_of,
)

ROUNDS = 3
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def kio_class(cls: type, version: int) -> type[Any]:
    key = message_info(cls).key
    assert key is not None
    load = load_request_schema if REQUESTS.get(key) is cls else load_response_schema
    return load(key, version)


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_kio_reads_what_we_write(cls: type) -> None:
    random = Random(cls.__name__)
    for version in versions_of(cls):
        theirs = kio_class(cls, version)
        for _ in range(ROUNDS):
            message = random_message(cls, version, random)
            ours = encode(message, version)
            entity, size = entity_reader(theirs)(ours, 0)
            assert size == len(ours)
            assert kio_bytes(entity) == ours
            assert decode(cls, ours, version) == message


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_we_read_what_kio_writes(cls: type) -> None:
    random = Random(cls.__name__)
    for version in versions_of(cls):
        for _ in range(ROUNDS):
            theirs = kio_bytes(random_entity(kio_class(cls, version), random))
            assert encode(decode(cls, theirs, version), version) == theirs


def test_error_codes_are_those_of_kio() -> None:
    assert {code.name: (code.value, code.retriable) for code in OLDER_CODES} == {
        code.name.upper(): (code.value, code.retriable) for code in KioErrorCode
    }


def random_entity(cls: type[Any], random: Random) -> Any:
    """A kio entity of random content, drawn from kio's own classes."""
    values = {}
    for field in dataclasses.fields(cls):
        if "tag" in field.metadata and random.random() < 0.5:
            continue
        values[field.name] = random_attribute(field.type, field.metadata, random)
    return cls(**values)


def random_attribute(annotation: Any, metadata: Any, random: Random) -> Any:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(annotation)
        if type(None) in options and "tag" not in metadata and random.random() < 0.25:
            return None
        return random_attribute(next(o for o in options if o is not type(None)), metadata, random)
    if origin is tuple:
        element = typing.get_args(annotation)[0]
        return tuple(
            random_attribute(element, metadata | {"element": True}, random)
            for _ in range(random.randint(0, 3))
        )
    if "kafka_type" not in metadata:
        return random_entity(annotation, random)
    return random_scalar(metadata["kafka_type"], random)


def random_scalar(kind: str, random: Random) -> Any:
    if bits := INTEGER_BITS.get(kind):
        return random.choice([0, random.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)])
    choices: dict[str, Any] = {
        "bool": lambda: random.random() < 0.5,
        "uint16": lambda: random.randint(0, 2**16 - 1),
        "float64": lambda: random.uniform(-1e9, 1e9),
        "string": lambda: random_text(random),
        "bytes": lambda: random.randbytes(random.choice(SIZES)),
        "records": lambda: random.randbytes(random.choice(SIZES) * 5),
        "uuid": lambda: uuid.UUID(bytes=random.randbytes(16)),
        "error_code": lambda: random.choice(list(KioErrorCode)),
        "timedelta_i32": lambda: datetime.timedelta(milliseconds=random.randint(0, 2**31 - 1)),
        "timedelta_i64": lambda: datetime.timedelta(milliseconds=random.randint(0, 2**40)),
        "datetime_i64": lambda: datetime.datetime.fromtimestamp(
            random.randint(0, 2**31), datetime.UTC
        ),
    }
    return choices[kind]()
