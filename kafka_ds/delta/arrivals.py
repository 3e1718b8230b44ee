"""Pure: which version of a table has wholly arrived in a copy whose objects come in any order.

A version counts if the log is there up to it, from a version on at which all files of the table are known, and so is
each file that the table has at that version. A file that came late or never, and that a later version removes, is
needed by the versions between alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_ds.delta.actions import Action, commit_info
from kafka_ds.delta.names import resolve_path

ANY_SIZE = -1


@dataclass(frozen=True, slots=True)
class NeededFile:
    """A file without which its version cannot be read; its size, or ANY_SIZE."""

    path: str
    size: int = ANY_SIZE


# By the path of a data file: it, and its deletion vector.
Needed = Mapping[str, tuple[NeededFile, ...]]
IsThere = Callable[[NeededFile], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedCommit:
    """A version of the log, as far as it decides which files are needed."""

    version: int
    timestamp_ms: int
    removed: frozenset[str]
    added: Needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How far a table has arrived."""

    table: str
    version: int
    """The last version that counts; -1 if there is none."""
    newest: int
    """The newest version of which anything has arrived."""
    waits_for: str = ""
    """The first object that is not there, if one is known to be missing."""
    since_ms: int = 0
    """The time of the first commit that waits, by its author's clock; 0 if none does."""


def commit_of(table: str, version: int, actions: Iterable[Action]) -> ArrivedCommit:
    """What a version's actions need and no longer need. Raises KeyError, TypeError, ValueError."""
    listed = list(actions)
    added: dict[str, tuple[NeededFile, ...]] = {}
    removed: set[str] = set()
    for action in listed:
        if add := action.get("add"):
            path = resolve_path(table, add["path"])
            added[path] = needed_by(table, path, int(add.get("size") or 0), add)
        elif remove := action.get("remove"):
            removed.add(resolve_path(table, remove["path"]))
    timestamp_ms = int(commit_info(listed).get("timestamp") or 0)
    return ArrivedCommit(
        version=version,
        timestamp_ms=timestamp_ms,
        removed=frozenset(removed) | added.keys(),
        added=added,
    )


def needed_by(table: str, path: str, size: int, add: Mapping[str, Any]) -> tuple[NeededFile, ...]:
    """The files that an add action names."""
    found = [NeededFile(path, size or ANY_SIZE)]
    if action := add.get("deletionVector"):
        # Needs numpy, which a process that only follows the metadata does not load.
        from kafka_ds.delta.deletion_vector import vector_of

        vector = vector_of(table, action)
        if vector is not None and vector.path:
            found.append(NeededFile(vector.path))
    return tuple(found)


def absent(needed: Needed, is_there: IsThere) -> dict[str, tuple[NeededFile, ...]]:
    """What of it is not there."""
    found = {
        path: tuple(each for each in files if not is_there(each)) for path, files in needed.items()
    }
    return {path: files for path, files in found.items() if files}


def last_whole(
    base: int, lacks: Needed, commits: Sequence[ArrivedCommit], is_there: IsThere
) -> tuple[int | None, Needed]:
    """The last version that counts, None if none does, and what the last of these commits lacks.

    `lacks` is what has not come of the table's files at version `base`, which the commits follow without a gap.
    """
    whole = None if lacks else base
    left = dict(lacks)
    for commit in commits:
        kept = {path: files for path, files in left.items() if path not in commit.removed}
        left = absent({**kept, **commit.added}, is_there)
        if not left:
            whole = commit.version
    return whole, left
