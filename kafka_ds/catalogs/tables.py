"""Pure: a lake's table as a catalog has it, and the changes that bring a schema of a catalog up to date.

A registered table has two properties: the lake's address, which shows that this lake registered it, and a digest of
its registration, which shows whether it is up to date.
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
    """A catalog does not answer or refuses a request; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column with its field of the Delta schema."""

    name: str
    field: Mapping[str, Any] = field(hash=False)
    partition_index: int | None = None
    """Its position among the partition columns."""

    @property
    def type_text(self) -> str:
        """The type in SQL."""
        return sql_type(self.field["type"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """A Delta table as a catalog registers it."""

    name: str
    topic: str
    lake: str
    location: str
    comment: str
    columns: tuple[CatalogColumn, ...]

    @property
    def digest(self) -> str:
        """A hash of what the catalog shows of the table."""
        shown = [self.location, self.comment, *(dict(each.field) for each in self.columns)]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def properties(self) -> dict[str, str]:
        """The properties by which later syncs recognise it."""
        return {LAKE: self.lake, TOPIC: self.topic, DIGEST: self.digest}


class Catalog(Protocol):
    """An external catalog; each method raises CatalogError."""

    def tables(self, schema: str) -> dict[str, Mapping[str, str]]:
        """The tables of a schema with their properties; creates the schema if it does not exist."""

    def create(self, schema: str, table: LakeTable) -> None:
        """Register an external table."""

    def replace(self, schema: str, table: LakeTable) -> None:
        """Update a registration: its columns, location or comment changed."""

    def drop(self, schema: str, name: str) -> None:
        """Drop a table; its files stay."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStep:
    """One change of a schema."""

    act: str
    """create, replace or drop; `report`: none, because somebody else registered the table."""
    name: str
    topic: str
    table: LakeTable | None = None


def steps(
    wanted: Collection[LakeTable], there: Mapping[str, Mapping[str, str]], lake: str
) -> Iterator[CatalogStep]:
    """The changes after which a schema has the wanted tables; `there` are the properties of the present ones."""
    by_name = {each.name: each for each in wanted}
    for name, table in by_name.items():
        properties = there.get(name)
        if properties is None:
            yield CatalogStep(act="create", name=name, topic=table.topic, table=table)
        elif properties.get(LAKE) != lake:
            yield CatalogStep(act="report", name=name, topic=table.topic, table=table)
        elif properties.get(DIGEST) != table.digest:
            yield CatalogStep(act="replace", name=name, topic=table.topic, table=table)
    for name, properties in there.items():
        if name not in by_name and properties.get(LAKE) == lake:
            yield CatalogStep(act="drop", name=name, topic=properties.get(TOPIC, ""))


def catalog_name(topic: str) -> str:
    """A topic's name in a form that every catalog accepts: lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]", "_", topic.lower())


def sql_type(delta_type: Any) -> str:
    """A type of a Delta schema in the SQL of Spark and Hive."""
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
