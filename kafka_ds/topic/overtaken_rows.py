"""Pure: when overtaken rows leave the table of a compacted topic, and the commits by which they do.

A row is overtaken if a newer one of its key is in the same partition. What is cleaned ends at an offset below which
all records are old enough; below it a key keeps its newest row. A commit replaces files by others without these rows.
Files that were rewritten meanwhile drop out of it. Whoever else removes rows or changes the table ends it: the newer
rows may be among those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_ds.delta.actions import Action, kafka_ds_info, txn_action
from kafka_ds.delta.file_entry import FileEntry
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import FilesRemoved, TableChanged, file_name
from kafka_ds.topic.index import latest_ms
from kafka_ds.topic.names import cleaned_at_mark, cleaned_mark

# The key in a commit's own data whose value is the pass that made it.
CLEANING: Final = "cleaning"


def clean_end(files: Iterable[FileEntry], end: int, newest_ms: int) -> int:
    """The first offset, up to `end`, of a file that may have a record newer than `newest_ms`."""
    young = (each.min_offset for each in files if latest_ms(each) > newest_ms)
    return min([end, *young])


def is_dirty(files: Iterable[FileEntry], cleaned: int, end: int, ratio: float) -> bool:
    """Whether this share of the rows below `end` came after the last cleaning, which ended at `cleaned`."""
    rows = dirty = 0
    for each in files:
        if each.min_offset < end:
            rows += each.rows
            dirty += max(0, min(each.rows, each.max_offset + 1 - max(cleaned, each.min_offset)))
    return dirty > 0 and dirty >= ratio * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFile:
    """A file with overtaken rows, and the one that replaces it, if any row stays."""

    before: FileEntry
    deleted: int
    add: Action | None


class TableCleaning:
    """A commit of one pass over one partition: a `Change`."""

    operation = "DELETE"

    def __init__(
        self,
        *,
        pass_id: str,
        topic_id: bytes,
        partition: int,
        files: Sequence[CleanedFile],
        protocol: Mapping[str, Any],
        metadata: Mapping[str, Any],
        now_ms: int,
        cleaned: int | None,
    ) -> None:
        """`cleaned`: the offset that the whole pass ends at, if this commit is its last and nothing was left out."""
        self.parameters = {"partition": str(partition), "reason": "overtaken"}
        self.dropped = 0
        """Files that were rewritten meanwhile."""
        self._pass_id = pass_id
        self._topic_id, self._partition = topic_id, partition
        self._files = {file_name(each.before.path): each for each in files}
        self._protocol, self._metadata = protocol, metadata
        self._now_ms, self._cleaned = now_ms, cleaned

    @property
    def deleted(self) -> int:
        """How many rows the commit deletes."""
        return sum(each.deleted for each in self._files.values())

    @property
    def has_files(self) -> bool:
        return any(each.add for each in self._files.values())

    def info(self) -> Mapping[str, Any]:
        return {
            CLEANING: self._pass_id,
            "topicId": uuid_text(self._topic_id),
            "partitions": [],
        }

    def check(self, version: int, actions: Sequence[Action]) -> None:
        """Drop what was rewritten. Raises FilesRemoved, TableChanged."""
        if (kafka_ds_info(actions) or {}).get(CLEANING) == self._pass_id:
            return
        for action in actions:
            # A rewrite repeats the metadata.
            if (
                action.get("metaData", self._metadata) != self._metadata
                or action.get("protocol", self._protocol) != self._protocol
            ):
                raise TableChanged(f"version {version} changed the table", version=version)
            removed = action.get("remove")
            if removed is None:
                continue
            if removed.get("dataChange", True):
                raise FilesRemoved(f"version {version} removed rows", version=version)
            self.dropped += self._files.pop(file_name(removed["path"]), None) is not None
        if self.dropped and not self._files:
            raise FilesRemoved(f"version {version} rewrote all of the files", version=version)

    def actions(self, version: int) -> Sequence[Action]:
        found: list[Action] = []
        for each in self._files.values():
            found += [] if each.add is None else [each.add]
            found.append(each.before.removal(self._now_ms))
        if self._cleaned is not None and not self.dropped:
            place = (self._topic_id, self._partition)
            found.append(txn_action(cleaned_mark(*place), self._cleaned))
            found.append(txn_action(cleaned_at_mark(*place), self._now_ms))
        return found
