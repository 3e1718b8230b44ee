"""Random keys and values in each format of typed tables, and what a row must say of them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

import fastavro
from google.protobuf import json_format

from tests.spark.schema_registry import Sender, message_class
from tests.spark.typed_schemas import Fields, avro, document, json_schema, protobuf, schemas
from tests.spark.typed_tables import parsed
from tests.spark.typed_values import value

SCHEMAS = 6
UNKNOWN_ID = 999_999


@dataclass(frozen=True)
class Value:
    """What a record has, the document that it is, and what its row says after a replay, if that is another.

    None as a document: no table takes it.
    """

    data: bytes | None
    document: dict[str, Any] | None = None
    replayed: dict[str, Any] | None = None


class Format(Protocol):
    """Of the keys and values of a topic."""

    value_format: str
    key_format: str
    replay_format: str
    """In which values are decoded again."""

    def key(self, word: str) -> tuple[bytes, str]:
        """A key, and what the table says of it."""

    def value(self, random: Random) -> Value:
        """A value: mostly a document, sometimes what no table takes."""

    def mend(self) -> None:
        """Before a replay: what it needs."""


class Json:
    """JSON without schemas. A replay takes as text what does not fit."""

    value_format, key_format, replay_format = "json", "string", "string"

    def key(self, word: str) -> tuple[bytes, str]:
        return word.encode(), word

    def value(self, random: Random) -> Value:
        return self._of(value(random))

    def mend(self) -> None:
        """Text needs nothing."""

    def _of(self, data: bytes | None, frame: bytes = b"") -> Value:
        framed = None if data is None else frame + data
        try:
            text = None if framed is None else {"value": framed.decode()}
        except UnicodeDecodeError:
            text = None
        return Value(framed, parsed(data), text)


class Spelling(NamedTuple):
    """How a format spells schemas and documents; `after_id`: the message's indexes."""

    name: str
    schema: Callable[[str, Fields], str]
    writer: Callable[[str, str], Callable[[dict[str, Any]], bytes]]
    after_id: bytes = b""


def _avro_writer(text: str, name: str) -> Callable[[dict[str, Any]], bytes]:
    schema = fastavro.parse_schema(json.loads(text))

    def write(of: dict[str, Any]) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, of)
        return written.getvalue()

    return write


def _protobuf_writer(text: str, name: str) -> Callable[[dict[str, Any]], bytes]:
    made = message_class(text, name)
    return lambda of: json_format.ParseDict(of, made()).SerializeToString()


def _json_writer(text: str, name: str) -> Callable[[dict[str, Any]], bytes]:
    return lambda of: json.dumps(of, ensure_ascii=False).encode()


AVRO = Spelling("avro", avro, _avro_writer)
PROTOBUF = Spelling("protobuf", protobuf, _protobuf_writer, b"\0")
JSON_SCHEMA = Spelling("json", json_schema, _json_writer)


class WrittenSchema:
    """A schema that has an id, whether the registry has it yet or not, and framed documents of it."""

    def __init__(self, spelling: Spelling, name: str, fields: Fields, schema_id: int = 0) -> None:
        self._fields = fields
        self._text = spelling.schema(name, fields)
        self._kind = spelling.name.upper()
        self._write = spelling.writer(self._text, name)
        self._after_id = spelling.after_id
        self.id = schema_id

    def register(self, sender: Sender) -> int:
        """Its id from now on."""
        self.id = sender.other(self._text, self._kind)
        return self.id

    @property
    def frame(self) -> bytes:
        return struct.pack(">bI", 0, self.id) + self._after_id

    def framed(self, of: dict[str, Any]) -> bytes:
        return self.frame + self._write(of)

    def one(self, random: Random) -> tuple[bytes, dict[str, Any]]:
        """A framed document, and what it is."""
        made = document(random, self._fields)
        return self.framed(made), made


class JsonSchema(Json):
    """JSON, of which schemas in a registry say the types. Some values do not keep to them."""

    def __init__(self, sender: Sender, name: str, random: Random) -> None:
        self._schemas = SchemasInFlight(JSON_SCHEMA, sender, name, schemas(random, SCHEMAS))

    def value(self, random: Random) -> Value:
        schema = self._schemas.one(random)
        framed, _ = schema.one(random)
        is_its = random.random() < 0.7
        data = framed.removeprefix(schema.frame) if is_its else value(random)
        return self._of(data, schema.frame)


class Registered:
    """Avro or Protobuf. A replay takes records whose schema came late to the registry."""

    def __init__(self, spelling: Spelling, sender: Sender, name: str, random: Random) -> None:
        self.value_format = self.replay_format = spelling.name
        self.key_format = random.choice(("string", spelling.name))
        self._sender = sender
        self._key = WrittenSchema(spelling, f"{name}Key", {"id": "string"})
        self._key.register(sender)
        *early, late = schemas(random, SCHEMAS)
        self._schemas = SchemasInFlight(spelling, sender, name, early)
        # The registry counts.
        self._late = WrittenSchema(spelling, f"{name}Late", late, self._schemas.last_id + 1)
        self._is_registered = False

    def key(self, word: str) -> tuple[bytes, str]:
        if self.key_format == "string":
            return word.encode(), word
        return self._key.framed({"id": word}), f'{{"id":"{word}"}}'

    def value(self, random: Random) -> Value:
        is_late = random.random() < 0.2
        data, made = (self._late if is_late else self._schemas.one(random)).one(random)
        if random.random() < 0.1:
            unknown = struct.pack(">bI", 0, UNKNOWN_ID) + data[5:]
            return Value(random.choice((None, b"", b"nope", data[:-1], data + b"\xff", unknown)))
        is_unknown = is_late and not self._is_registered
        return Value(data, None, made) if is_unknown else Value(data, made)

    def mend(self) -> None:
        expected = self._late.id
        assert self._late.register(self._sender) == expected
        self._is_registered = True


class SchemasInFlight:
    """Schemas of a registry of which records come: always some together, later ones as time goes on."""

    def __init__(self, spelling: Spelling, sender: Sender, name: str, all_of: list[Fields]) -> None:
        self._all = [WrittenSchema(spelling, f"{name}{n}", each) for n, each in enumerate(all_of)]
        self.last_id = max(each.register(sender) for each in self._all)
        self._newest = 1

    def one(self, random: Random) -> WrittenSchema:
        if random.random() < 0.05:
            self._newest = min(self._newest + 1, len(self._all))
        return random.choice(self._all[: self._newest][-3:])


def format_of(seed: int, random: Random, sender: Callable[[], Sender]) -> Format:
    """The format of a life."""
    name = f"Life{seed}"
    made: tuple[Callable[[], Format], ...] = (
        Json,
        lambda: Registered(AVRO, sender(), name, random),
        lambda: Registered(PROTOBUF, sender(), name, random),
        lambda: JsonSchema(sender(), name, random),
    )
    return made[seed % len(made)]()
