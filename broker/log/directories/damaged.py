"""Shell: logs that are damaged where nothing may be cut off: nobody serves them, and they stay as they lie.

Rules of this file:
- One such log is no failure of its directory: the others in it are served. Its partition is offline until the log is
  mended, or given up, and the broker started anew; other replicas that are in sync lead (`broker.cluster.directories`).
- What the checkpoints say of it stays in them: without its recovery point the next start would cut it off there.
- What no start has recovered no stop calls clean: a whole log that is put in its place is recovered then.
- A log of another topic, or of a new one, does not wait for it: then it is set aside (`…-stray`), as it is when its
  topic is deleted, or its partition leaves this broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from broker.log import names
from broker.log.directories.directory import LogDirectory, Offsets
from broker.seams import Disk
from broker.system import new_uuid
from kafka_ds.wire.types import NO_UUID

Key = tuple[str, int]

CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.HIGH_WATERMARK_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damaged:
    home: LogDirectory
    why: OSError
    # As far as its folder says.
    topic_id: bytes
    # What the checkpoints said of it, by their names.
    offsets: dict[str, int]


class DamagedLogs:
    """Those that a start has found."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._found: dict[Key, _Damaged] = {}

    def found(self, directory: LogDirectory, damaged: dict[Key, OSError]) -> None:
        """A directory has these; to be told before its checkpoints are written again."""
        known = {name: directory.read_checkpoint(name) for name in CHECKPOINTS if damaged}
        for key, why in damaged.items():
            offsets = {name: each[key] for name, each in known.items() if key in each}
            self._found[key] = _Damaged(
                home=directory,
                why=why,
                topic_id=directory.topic_id_of(names.folder_name(*key)),
                offsets=offsets,
            )
            _LOGGER.error("%s-%d is not served: %s", *key, why)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._found)

    def home_of(self, key: Key) -> LogDirectory | None:
        """The directory in which such a log lies."""
        found = self._found.get(key)
        return None if found is None else found.home

    def has(self, key: Key, topic_id: bytes) -> bool:
        """Whether there is one of this topic's partition; one that does not say whose it is, is."""
        found = self._found.get(key)
        return found is not None and found.topic_id in (topic_id, NO_UUID)

    def partitions_of(self, topic: str, topic_id: bytes) -> list[int]:
        """The numbers of a topic's partitions that have one."""
        return [key[1] for key in self._found if key[0] == topic and self.has(key, topic_id)]

    def why_not(self, key: Key, topic_id: bytes, *, is_new: bool) -> str | None:
        """Why the log of this topic's partition cannot be made; what lies there is set aside where it is not its own.

        Raises OSError.
        """
        found = self._found.get(key)
        if found is None:
            return None
        if not is_new and self.has(key, topic_id):
            return str(found.why)
        self.set_aside(key)
        return None

    def set_aside(self, key: Key) -> None:
        """It is of no replica here: out of the way, and of sight. Nothing deletes its folder. Raises OSError."""
        home = self._found[key].home
        aside = names.renamed_folder_name(*key, new_uuid(), names.STRAY_FOLDER)
        self._disk.rename(home.file(names.folder_name(*key)), home.file(aside))
        _LOGGER.error("%s-%d is damaged, and no replica here: its folder is now %s", *key, aside)
        del self._found[key]

    def unrecovered(self) -> Iterator[LogDirectory]:
        """Directories with such logs that were not left cleanly: a clean stop would vouch for what nobody has read."""
        return (each.home for each in self._found.values() if not each.home.was_clean)

    def offsets(self, directory: LogDirectory, checkpoint: str) -> Offsets:
        """What a checkpoint of a directory has to go on saying."""
        return {
            key: each.offsets[checkpoint]
            for key, each in self._found.items()
            if each.home is directory and checkpoint in each.offsets
        }
