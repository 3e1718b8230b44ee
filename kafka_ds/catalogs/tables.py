"""Pure: what a catalog is told of a table of the lake: name, place, columns; and what of it is to be done.

Rules of this file: a registered table carries the address of its lake, by which it is known as ours, and a digest of
what it was registered with, by which it is known to be as it should.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kafka_ds.errors import KafkaDsError

LAKE: Final = "kafkaDs.lake"
TOPIC: Final = "kafkaDs.topic"
DIGEST: Final = "kafkaDs.digest"
PROVIDER: Final = "delta"
_SPARK_TYPES: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class CatalogError(KafkaDsError):
    """A catalog does not answer, or refuses; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column, as a field of Delta's schema has it."""

    name: str
    field: Mapping[str, Any] = field(hash=False)
    partition_index: int | None = None
    """Which of the columns it is by which the table is partitioned."""

    @property
    def type_text(self) -> str:
        """The type as SQL spells it."""
        return sql_type(self.field["type"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """A Delta table as a catalog has it."""

    name: str
    topic: str
    lake: str
    location: str
    comment: str
    columns: tuple[CatalogColumn, ...]

    @property
    def digest(self) -> str:
        """Another one for each change of what a catalog shows."""
        told = [self.location, self.comment, *(dict(each.field) for each in self.columns)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def properties(self) -> dict[str, str]:
        """What it is known by."""
        return {LAKE: self.lake, TOPIC: self.topic, DIGEST: self.digest}


class Catalog(Protocol):
    """What is asked of a catalog; each raises CatalogError."""

    def tables(self, schema: str) -> dict[str, Mapping[str, str]]:
        """The tables of a schema, which is made where there is none, with their properties."""

    def create(self, schema: str, table: LakeTable) -> None:
        """Register an external table."""

    def replace(self, schema: str, table: LakeTable) -> None:
        """Register it anew: its columns, place or comment changed."""

    def drop(self, schema: str, name: str) -> None:
        """Forget a table; its files stay."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStep:
    """One thing to do in a schema."""

    act: str
    """create, replace or drop; `report`: nothing, as the table is somebody else's."""
    name: str
    topic: str
    table: LakeTable | None = None


def steps(
    wanted: Collection[LakeTable], there: Mapping[str, Mapping[str, str]], lake: str
) -> Iterator[CatalogStep]:
    """What takes a schema of a catalog to what it should have."""
    by_name = {each.name: each for each in wanted}
    for name, table in by_name.items():
        told = there.get(name)
        if told is None:
            yield CatalogStep(act="create", name=name, topic=table.topic, table=table)
        elif told.get(LAKE) != lake:
            yield CatalogStep(act="report", name=name, topic=table.topic, table=table)
        elif told.get(DIGEST) != table.digest:
            yield CatalogStep(act="replace", name=name, topic=table.topic, table=table)
    for name, told in there.items():
        if name not in by_name and told.get(LAKE) == lake:
            yield CatalogStep(act="drop", name=name, topic=told.get(TOPIC, ""))


def catalog_name(topic: str) -> str:
    """A topic's name as all catalogs take it: in lower case, of letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]", "_", topic.lower())


def sql_type(delta_type: Any) -> str:
    """A type of Delta's schema as Spark and Hive spell it."""
    if isinstance(delta_type, str):
        return _SPARK_TYPES.get(delta_type, delta_type)
    match delta_type["type"]:
        case "array":
            return f"array<{sql_type(delta_type['elementType'])}>"
        case "map":
            return f"map<{sql_type(delta_type['keyType'])},{sql_type(delta_type['valueType'])}>"
        case _:
            fields = (f"{_quoted(f['name'])}:{sql_type(f['type'])}" for f in delta_type["fields"])
            return f"struct<{','.join(fields)}>"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name}`"
