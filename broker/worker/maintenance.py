"""Shell: the maintenance of the tier's tables: checkpoints, and the log's clean-up.

It is called after each write, so it asks nothing of the store until an interval's commits have come since the last
known checkpoint. Everything else is `kafka_ds.delta.maintenance`, whose library is loaded only then (16 MiB). It uses a
log object of its own, since others follow the table meanwhile. Each checkpoint also triggers the clean-up of orphans,
which runs elsewhere. A crash may have torn the newest checkpoint, and then other engines cannot open the table: so it
is checked once in a worker's life.
"""

import logging
from collections.abc import Callable

from kafka_ds.delta.checkpoint import is_torn
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.delta.store.store import Store
from kafka_ds.process.amounts import counted
from kafka_ds.process.crash_points import CrashPoints

log = logging.getLogger(__name__)


class TableMaintenance:
    """Maintains tables, one at a time. One thread."""

    def __init__(
        self,
        store: Store,
        crash_points: CrashPoints,
        clock: LogClock,
        *,
        interval: int,
        checkpointed: Callable[[str], None] = lambda folder: None,
    ) -> None:
        """`checkpointed` is called with the folder of each table that got a checkpoint."""
        self._store = store
        self._crash_points = crash_points
        self._clock = clock
        self._interval = interval
        self._checkpointed = checkpointed
        self._checkpoints: dict[str, int] = {}
        """The version of each table's last checkpoint, as it was last looked up; others may have made later ones."""

    def look_after(
        self, folder: str, version: int, *, keep_from: Callable[[], int] | None = None
    ) -> None:
        """Do what is due for the table in that folder, which has reached `version`.

        `keep_from` is asked where something is due: versions from there on are needed.
        """
        known = self._checkpoints.get(folder)
        if known is not None and version - known < self._interval:
            return
        table = DeltaLog(self._store, folder, clock=self._clock)
        if known is None:
            self._drop_torn(table)
        known = self._checkpoints[folder] = table.last_checkpoint() or 0
        if version - known < self._interval:
            return
        from kafka_ds.delta.maintenance import maintain

        now_ms = self._clock.wall_ms()
        self._crash_points.at("before_checkpoint")
        needed_from = None if keep_from is None else keep_from()
        done = maintain(table, now_ms=now_ms, interval=self._interval, keep_from=needed_from)
        self._crash_points.at("after_checkpoint")
        self._checkpoints[folder] = table.last_checkpoint() or 0
        log.info(
            "%s: wrote the checkpoint of version %s, deleted %s",
            folder,
            done.checkpoint_version,
            counted(done.log_files_deleted, "expired log file"),
        )
        self._checkpointed(folder)

    def forget(self, folder: str) -> None:
        """The table's topic is deleted."""
        self._checkpoints.pop(folder, None)

    def _drop_torn(self, table: DeltaLog) -> None:
        checkpoints = table.listing(start=table.last_checkpoint() or 0).checkpoints
        if not checkpoints:
            return
        newest = max(checkpoints)
        if not is_torn(self._store, table.table, newest, checkpoints[newest]):
            return
        from kafka_ds.delta.maintenance import drop_torn_checkpoints

        dropped = drop_torn_checkpoints(table)
        log.warning("%s: deleted corrupt checkpoints of versions %s", table.table, dropped)
