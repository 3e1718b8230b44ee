"""What several tests use: definition, snake, kafka_range, type_of and others."""

import json
import re
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from kafka_ds.protocol.messages import OWN_TAGS_FROM
from kafka_ds.protocol.plan import ArrayPlan, FieldPlan, PlannedField, StructPlan, plan
from kafka_ds.protocol.types import MISSING, NO_UUID, Field, Versions, fields_of, message_info
from kafka_ds.protocol.types import versions as our_versions
from kafka_ds.records.batch import Record, build_batch
from tests.apache_kafka import dump

TYPES = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u16": "uint16", "u32": "uint32", "f64": "float64",
    "boolean": "bool", "string": "string", "bytes": "bytes", "records": "records", "uuid": "uuid",
}  # fmt: skip


# Where Kafka's classes begin with an empty text or list, and null says better that there is none.
NULL_INSTEAD = {"error_message", "aborted_transactions"}


@cache
def definition(jar: Path, name: str, folder: str = "message") -> dict[str, Any]:
    with zipfile.ZipFile(jar) as archive:
        text = archive.read(f"common/{folder}/{name}.json").decode()
    parsed: dict[str, Any] = json.loads(re.sub(r"(^|\s)//.*", "", text))
    return parsed


def snake(name: str) -> str:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def kafka_range(text: str | None) -> Versions:
    return our_versions(None if text in (None, "none") else text)


def type_of(kind: FieldPlan) -> str | None:
    """Kafka's name of a type; None for a struct, whose name is ours to choose."""
    if isinstance(kind, ArrayPlan):
        return f"[]{type_of(kind.element) or ''}"
    return None if isinstance(kind, StructPlan) else TYPES[kind.name]


def kafka_type_of(field: dict[str, Any], is_struct: bool) -> str | None:
    if not is_struct:
        return str(field["type"])
    return "[]" if field["type"].startswith("[]") else None


def kafka_default(field: dict[str, Any], is_struct: bool) -> Any:
    """The default that Kafka's generated class has, as it would stand in ours."""
    kind, text = field["type"], field.get("default")
    if text == "null":
        return None
    if kind.startswith("[]"):
        return []
    if is_struct or kind == "records":
        return None
    if kind == "string":
        return text or ""
    if kind == "bool":
        return str(text).lower() == "true"
    if kind in ("uuid", "bytes"):
        return NO_UUID if kind == "uuid" else b""
    return 0 if text is None else int(text, 0) if isinstance(text, str) else text


def check_default(ours: PlannedField, theirs: dict[str, Any], is_struct: bool) -> None:
    if ours.default is MISSING:
        assert "default" not in theirs, f"{ours.name} has a default in Kafka"
    elif ours.name in NULL_INSTEAD:
        assert ours.default is None, ours.name
    else:
        expected = kafka_default(theirs, is_struct)
        assert (ours.default, type(ours.default)) == (expected, type(expected)), ours.name


def is_own(field: PlannedField | Field) -> bool:
    """Whether Kafka's message does not have this field."""
    return field.tag is not None and field.tag >= OWN_TAGS_FROM


class Comparison:
    """One message definition against one plan."""

    def __init__(self, theirs: dict[str, Any], version: int) -> None:
        self.common = {s["name"]: s["fields"] for s in theirs.get("commonStructs", [])}
        self.version = version

    def has(self, field: dict[str, Any], key: str) -> bool:
        return self.version in kafka_range(field.get(key))

    def struct(self, ours: StructPlan, theirs: list[dict[str, Any]]) -> None:
        present = [
            f for f in theirs if self.has(f, "versions" if "versions" in f else "taggedVersions")
        ]
        plain = [f for f in present if not self.has(f, "taggedVersions")]
        tagged = sorted((f for f in present if f not in plain), key=lambda f: int(f["tag"]))
        assert [f.name for f in ours.fields] == [snake(f["name"]) for f in plain]
        our_tagged = tuple(f for f in ours.tagged if not is_own(f))
        assert [f.name for f in our_tagged] == [snake(f["name"]) for f in tagged]
        assert [f.tag for f in our_tagged] == [f["tag"] for f in tagged]
        names = {snake(f["name"]) for f in theirs}
        assert {f.name for f in fields_of(ours.cls) if not is_own(f)} <= names
        for our_field, their_field in zip(ours.fields + our_tagged, plain + tagged, strict=True):
            self.field(our_field, their_field)

    def field(self, ours: PlannedField, theirs: dict[str, Any]) -> None:
        element = ours.kind.element if isinstance(ours.kind, ArrayPlan) else ours.kind
        is_struct = isinstance(element, StructPlan)
        assert type_of(ours.kind) == kafka_type_of(theirs, is_struct), ours.name
        assert ours.nullable == self.has(theirs, "nullableVersions"), ours.name
        check_default(ours, theirs, is_struct)
        if isinstance(element, StructPlan):
            name = theirs["type"].removeprefix("[]")
            self.struct(element, theirs.get("fields") or self.common[name])


def assert_declared(cls: type, theirs: dict[str, Any]) -> None:
    """A class has the versions and the fields of Kafka's definition."""
    info = message_info(cls)
    assert info.versions == kafka_range(theirs["validVersions"])
    assert info.flexible == kafka_range(theirs["flexibleVersions"])
    for version in range(info.versions.first, info.versions.last + 1):
        Comparison(theirs, version).struct(plan(cls, version), theirs["fields"])


def shown_by_dump(
    jars: Path, folder: Path, records: Iterable[tuple[bytes, bytes | None]], decoder: str
) -> list[tuple[str, str]]:
    """Keys and values as Kafka's kafka-dump-log.sh shows them."""
    log = folder / "00000000000000000000.log"
    log.write_bytes(build_batch([Record(i, 9, *each) for i, each in enumerate(records)]))
    told = dump(jars, [log], decoder).splitlines()
    lines = [line.partition(" key: ")[2] for line in told if " key: " in line]
    return [(key, value) for key, _, value in (line.partition(" payload: ") for line in lines)]
