"""Shell: files that a table names and the store lacks, and the files from which OPTIMIZE had made them.

A script, or another engine's VACUUM, may delete a file while no version names it. The rows are still in the files that
were rewritten, until a VACUUM deletes those. Rows that were erased since do not come back: a file with a deletion
vector, or one that another engine wrote, has no origin here. Overtaken rows come back if no later pass may have deleted
their tombstones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.statistics import entry_of_add
from kafka_ds.delta.store.store import Store
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.overtaken_rows import CLEANING


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A rewrite whose old files are in the store."""

    old: tuple[FileEntry, ...]
    """Without statistics."""
    new: frozenset[str]
    """All files that it wrote, by path."""


def lost_files(
    store: Store, folder: str, partition: int, files: Sequence[FileEntry]
) -> list[FileEntry]:
    """Files of a partition that are missing or have another size: by one listing, not file by file."""
    there = {each.path: each.size for each in store.list(f"{folder}/partition={partition}")}
    return [
        each
        for each in files
        if there.get(each.path) != each.size and store.size(each.path) != each.size
    ]


def origin_of(store: Store, log: DeltaLog, path: str) -> Origin | None:
    """The rewrite that made a file; None if no commit of kafka-ds says so, or its old files are gone.

    If the old files are gone but were themselves rewritten as a whole, the files before them serve.
    """
    wanted, new = frozenset([path]), frozenset[str]()
    passes: set[str] = set()
    for version in range(log.latest_version(), -1, -1):
        actions = log.read_version(version)
        if actions is None:
            return None
        added = frozenset(
            resolve_path(log.table, each["add"]["path"]) for each in actions if "add" in each
        )
        ours = kafka_ds_info(actions)
        if ours is not None and CLEANING in ours:
            passes.add(ours[CLEANING])
        if not added & wanted:
            continue
        old = tuple(entry_of_add(log.table, each["remove"]) for each in actions if "remove" in each)
        if ours is None or len(passes) > 1 or not old or (new and added != wanted):
            return None
        new = new or added
        if all(store.size(each.path) == each.size for each in old):
            return Origin(old=old, new=new)
        if any(each.vector is not None for each in old):
            return None
        wanted = frozenset(each.path for each in old)
    return None
