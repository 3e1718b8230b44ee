"""Pure: which columns a typed table can have, and those that the settings `lake.table.…columns` name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

# The date of `_timestamp`, in UTC: a column of tables that are partitioned by it.
DATE: Final = "_date"
# The pipelines' own columns, in the table or on the way to it.
OWN: Final = frozenset(
    f"_{name}"
    for name in (
        *("partition", "offset", "timestamp", "key", "headers", "schema_id", "date"),
        *("rescued", "reason", "tombstone"),
    )
)
# Of these a table may be partitioned by: a key would be in folders' names, where nothing can erase it, and offsets and
# timestamps would be a folder for each record.
_OF_PARTITIONS: Final = ("_partition", "_schema_id", DATE)
PARTITION_COLUMNS_MAX: Final = 4
# The longest name of a partition column: of a folder's 255 bytes its value needs the rest.
_PARTITION_NAME_MAX: Final = 60
# In a table of current state also the columns of Delta's change data feed, and Spark's `_metadata`, which MERGE needs.
OF_CURRENT: Final = frozenset(("_change_type", "_commit_version", "_commit_timestamp", "_metadata"))
# Column names that Delta accepts without column mapping, and that other engines can read.
NAMEABLE: Final = re.compile(r"""[^\s,;{}()='"`\[\]\\$\x00-\x1f]{1,255}""")
SCALARS: Final = ("bigint", "double", "boolean", "string")
VARIANT: Final = "variant"
JSON: Final = "json"
# Kinds nested deeper are not columns.
DEPTH_MAX: Final = 10
_OF_CLASHES: Final = re.compile(rf".*__({'|'.join((*SCALARS, JSON))})", re.DOTALL)
_DECLARED: Final = re.compile(r"(\S+)\s+(\S.*)")
_TYPE: Final = re.compile(rf"(?:array<)*({'|'.join(SCALARS)})>*|{VARIANT}")

# The names of a field and of the objects that it is in, outermost first.
FieldPath = tuple[str, ...]


def is_of_clashes(name: str) -> bool:
    """Whether only values that do not fit another column are in a column of this name."""
    return _OF_CLASHES.fullmatch(name) is not None


def declared_columns(parts: Iterable[str]) -> dict[FieldPath, str]:
    """The types of JSON fields by their paths, from texts such as `pos.lat DOUBLE`, in lower case.

    Raises:
        ValueError: naming the part that is none.
    """
    found: dict[FieldPath, str] = {}
    spelled: dict[FieldPath, str] = {}
    for part in parts:
        matched = _DECLARED.fullmatch(part.strip())
        if matched is None:
            raise ValueError(f"'{part}' is not a path and a type, as in 'pos.lat DOUBLE'")
        path, kind = tuple(matched[1].split(".")), matched[2].replace(" ", "").lower()
        if _TYPE.fullmatch(kind) is None or kind.count("<") != kind.count(">"):
            raise ValueError(
                f"'{part}': {matched[2]} is not one of {', '.join(SCALARS).upper()}, ARRAY<…>, VARIANT"
            )
        if kind == VARIANT and len(path) > 1:
            raise ValueError(f"'{part}': only a field of the value itself can be VARIANT")
        if len(path) + kind.count("<") > DEPTH_MAX:
            raise ValueError(f"'{part}' is nested deeper than {DEPTH_MAX}")
        _check_names(part, path)
        lower = tuple(name.lower() for name in path)
        for other, text in spelled.items():
            shorter = min(len(other), len(lower))
            if other[:shorter] == lower[:shorter] and shorter in (len(other), len(lower)):
                raise ValueError(f"'{part}' and '{text}' are one column")
        spelled[lower] = part
        found[path] = kind
    return found


def _check_names(part: str, path: FieldPath) -> None:
    for name in path:
        if NAMEABLE.fullmatch(name) is None or is_of_clashes(name):
            raise ValueError(f"'{part}': no column of a field can be called '{name}'")
    if path[0].lower() in OWN | OF_CURRENT:
        raise ValueError(f"'{part}': each table has a column {path[0].lower()} of its own")


def check_partition_columns(
    names: Collection[str], declared: Collection[tuple[FieldPath, str]] | None
) -> None:
    """Check by which columns a typed table is to be partitioned.

    `declared` are the items of `declared_columns` if values are JSON, whose columns have no type before.

    Raises:
        ValueError: naming the column that cannot be one.
    """
    if len(names) > PARTITION_COLUMNS_MAX:
        raise ValueError(f"{','.join(names)} names more than {PARTITION_COLUMNS_MAX} columns")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"{','.join(names)} names a column twice")
    for name in names:
        if name in _OF_PARTITIONS:
            continue
        if name.lower() in OWN | OF_CURRENT:
            raise ValueError(f"{name} is none of {', '.join(_OF_PARTITIONS)}, and no field")
        is_nameable = NAMEABLE.fullmatch(name) is not None and not is_of_clashes(name)
        is_long = len(name.encode()) > _PARTITION_NAME_MAX
        # A partition column of the name `partition` is the topic's, in a topic's own table.
        if not is_nameable or is_long or name.lower() == "partition":
            raise ValueError(f"no table is partitioned by a column called '{name}'")
        if declared is not None and not {((name,), "string"), ((name,), "bigint")} & {*declared}:
            raise ValueError(f"lake.table.columns must say whether {name} is STRING or BIGINT")
