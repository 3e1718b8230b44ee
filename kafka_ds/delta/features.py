"""Pure: which table features demand what is not written here, and the SQL with which each is undone.

A feature that is listed (or implied by a version) demands something of a writer only while it is active, by a property
or by a column's schema. Some demand it as soon as they are listed; unknown ones stop writers. Deletion vectors demand
nothing more, as files are added whole and removed with the vectors they have; `checkpointProtection` allows a clean-up
that makes no checkpoint and removes none newer than what it truncates, as `clean_log` is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

READER_VERSION_WITH_FEATURES = 3
WRITER_VERSION_WITH_FEATURES = 7

# Ignored unless something below shows that they are active.
KNOWN_FEATURES = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
ROW_TRACKING = "rowTracking"
# Property → the values with which its feature is active.
_ACTIVE = {
    "delta.appendOnly": ("true",),
    "delta.enableChangeDataFeed": ("true",),
    "delta.enableInCommitTimestamps": ("true",),
    "delta.enableRowTracking": ("true",),
    "delta.columnMapping.mode": ("name", "id"),
    "delta.enableIcebergCompatV1": ("true",),
    "delta.enableIcebergCompatV2": ("true",),
    "delta.enableIcebergCompatV3": ("true",),
    # Checkpoints under names that are not looked for here.
    "delta.checkpointPolicy": ("v2",),
}
_CONSTRAINT = "delta.constraints."
# A column's schema → its feature.
_OF_COLUMNS = {
    "delta.invariants": "has an invariant",
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.typeChanges": "was given a wider type",
}
_DEFAULT = "CURRENT_DEFAULT"


def unsupported(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """The feature that demands what is not done here as soon as it is listed; None if there is none."""
    reader, writer = protocol.get("minReaderVersion", 1), protocol.get("minWriterVersion", 1)
    if reader > READER_VERSION_WITH_FEATURES or writer > WRITER_VERSION_WITH_FEATURES:
        return f"reader version {reader} and writer version {writer} are not known here"
    if reader == READER_VERSION_WITH_FEATURES and writer < WRITER_VERSION_WITH_FEATURES:
        return f"reader version {reader} with writer version {writer} is none of Delta's"
    listed = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    configuration = metadata.get("configuration", {})
    if str(configuration.get("delta.rowTrackingSuspended", "")).lower() == "true":
        listed.discard(ROW_TRACKING)
    found = sorted(listed - KNOWN_FEATURES)
    if not found:
        return None
    ways = ", ".join(f"ALTER TABLE … DROP FEATURE {each}" for each in found)
    return f"table feature {', '.join(found)}: {ways}"


def active(metadata: Mapping[str, Any], own_columns: Collection[str]) -> str | None:
    """The active feature under which rows or commits of kafka-ds would be wrong; None if there is none.

    Each row has a value for `own_columns`: their defaults are never used.
    """
    configuration = metadata.get("configuration", {})
    for name, values in _ACTIVE.items():
        if str(configuration.get(name, "")).lower() in values:
            return f"{name}={configuration[name]}: {unset(name)}"
    for name in configuration:
        if name.startswith(_CONSTRAINT):
            constraint = name.removeprefix(_CONSTRAINT)
            return f"CHECK constraint {constraint}: ALTER TABLE … DROP CONSTRAINT {constraint}"
    for path, field in _fields(json.loads(metadata["schemaString"]), ()):
        column, said = ".".join(path), field.get("metadata") or {}
        for key, what in _OF_COLUMNS.items():
            if key in said:
                return f"column {column} {what} ({key})"
        if _DEFAULT in said and path[0] not in own_columns:
            return (
                f"column {column} has a default: ALTER TABLE … ALTER COLUMN {column} DROP DEFAULT"
            )
        if field["type"] == "variant":
            return f"column {column} is a variant"
    return None


def unset(name: str) -> str:
    """The SQL that takes a property back."""
    return f"ALTER TABLE … UNSET TBLPROPERTIES ('{name}')"


def _fields(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """All columns of a type and what lies in them, with their names from the outermost on."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        here = (*path, field["name"])
        yield here, field
        yield from _fields(field["type"], here)
    for part in ("elementType", "keyType", "valueType"):
        yield from _fields(kind.get(part), path)
