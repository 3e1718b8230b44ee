"""Shell: removes what lost attempts left in the store: once a day, in a background thread.

A table is due when it gets a checkpoint. The table's own log, a week of it or as much as the table keeps, shows which
data files are orphans. Residue files are in no log. Several may begin at one offset, because each try of a range begins
at the tiered end. Those are removed that no finished segment names, and only if a finished segment names another one of
the same offset; so the winner's file stays even if it was never recorded as FINISHED. Nothing younger than a week is
removed.
"""

import logging
import threading
from collections.abc import Callable, Collection

from kafka_ds.delta.actions import DAY_MS
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.delta.store.store import Store, StoreEntry
from kafka_ds.process.amounts import counted
from kafka_ds.topic.events import residue_of_segments
from kafka_ds.topic.missing import missing_files_of
from kafka_ds.topic.names import RESIDUE, TOPICS, start_of_residue

log = logging.getLogger(__name__)

ORPHAN_AGE_MS = 7 * DAY_MS


class Orphans:
    """Looks for orphans in tables. `are_due_in`: any thread; `vacuum_due`: one thread."""

    def __init__(self, store: Store, clock: LogClock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[str, None] = {}
        self._vacuumed_ms: dict[str, int] = {}

    def are_due_in(self, folder: str) -> None:
        """The table in that folder got a checkpoint."""
        with self._lock:
            if self._clock.wall_ms() - self._vacuumed_ms.get(folder, 0) >= DAY_MS:
                self._due[folder] = None

    def vacuum_due(self) -> list[str]:
        """Remove orphans where that is due; returns the removed paths. A failure is retried the next day."""
        gone: list[str] = []
        while (folder := self._next()) is not None:
            found = self._vacuum(folder)
            log.info("%s: deleted %s", folder, counted(len(found), "orphaned file"))
            gone += found
        return gone

    def _next(self) -> str | None:
        with self._lock:
            folder = self._due.popitem()[0] if self._due else None
            if folder is not None:
                now_ms = self._clock.wall_ms()
                recent = self._vacuumed_ms.items()
                # Older entries mean nothing, and may be of deleted topics.
                self._vacuumed_ms = {key: at for key, at in recent if now_ms - at < DAY_MS}
                self._vacuumed_ms[folder] = now_ms
            return folder

    def _vacuum(self, folder: str) -> list[str]:
        from kafka_ds.delta.maintenance import vacuum  # 16 MiB that are seldom needed

        now_ms = self._clock.wall_ms()
        lost: Collection[str] = ()
        root, _, topic = folder.partition("/")
        if root == TOPICS:
            lost = lost_residue(
                self._store.list(f"{folder}/{RESIDUE}"),
                older_than_ms=now_ms - ORPHAN_AGE_MS,
                named=lambda: {
                    f"{folder}/{each}" for each in residue_of_segments(self._store, topic)
                },
            )
        table = DeltaLog(self._store, folder, clock=self._clock)
        return vacuum(
            table,
            now_ms=now_ms,
            older_than_ms=ORPHAN_AGE_MS,
            lost=lost,
            kept=lambda snapshot: missing_files_of(folder, snapshot.txns),
        )


def lost_residue(
    entries: Collection[StoreEntry], *, older_than_ms: int, named: Callable[[], Collection[str]]
) -> set[str]:
    """The residue files of lost attempts; `named` gives those of finished segments, asked only if needed."""
    groups: dict[tuple[str, int], list[StoreEntry]] = {}
    for entry in entries:
        start = start_of_residue(entry.path)
        if start is not None:
            groups.setdefault((entry.path.rpartition("/")[0], start), []).append(entry)
    rivals = [
        each
        for each in groups.values()
        if len(each) > 1 and any(one.modified_ms < older_than_ms for one in each)
    ]
    if not rivals:
        return set()
    known = named()
    return {
        entry.path
        for group in rivals
        if any(each.path in known for each in group)
        for entry in group
        if entry.modified_ms < older_than_ms and entry.path not in known
    }
