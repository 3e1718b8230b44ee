"""Shell: the files of a table of events, merged from time to time by the maintenance thread.

- The table is looked at every `lake.maintenance.interval.ms`, and when a worker starts if it is old enough to have a
  checkpoint: a worker that copies once an hour lives for one copy only.
- It uses a log object of its own, since others follow the table meanwhile.
- A failed merge is tried again at the next look; nothing waits for it.
"""

from broker.worker.rpc import TierSettings
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.delta.snapshot import NoSuchTable
from kafka_ds.delta.store.store import Store
from kafka_ds.process.crash_points import CrashPoints


class EventMerging:
    """Merges one table's small files. One thread."""

    def __init__(
        self,
        store: Store,
        table: str,
        settings: TierSettings,
        crash_points: CrashPoints,
        clock: LogClock,
    ) -> None:
        """`table`: `__remote_log_metadata` or `__cluster_metadata`."""
        self._store = store
        self._table = table
        self._settings = settings
        self._crash_points = crash_points
        self._clock = clock
        self._looked_ms: int | None = None

    def look(self) -> int:
        """Merge what is due; returns the number of merges. Raises CommitError, OSError."""
        interval_ms = self._settings.lake_maintenance_interval_ms
        now_ms = self._clock.boot_ms()
        if interval_ms < 0:
            return 0
        events = DeltaLog(self._store, self._table, clock=self._clock)
        if self._looked_ms is None:
            self._looked_ms = now_ms
            if events.last_checkpoint() is None:
                return 0
        elif now_ms - self._looked_ms < interval_ms:
            return 0
        self._looked_ms = now_ms
        from kafka_ds.topic.event_files import merge_events

        files_min = self._settings.lake_maintenance_min_files
        try:
            return len(merge_events(events, files_min=files_min, at=self._crash_points.at))
        except NoSuchTable:
            return 0
