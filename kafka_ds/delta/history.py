"""Shell: which versions of a table can be read, and what time each has.

A version's time is that at which its file was written, as in Delta for tables without in-commit timestamps, and never
earlier than that of the version before. If only a version's checkpoint is left, the checkpoint's time counts. Readable
are the versions from the oldest complete checkpoint (or version 0) on, without a gap.
"""

from __future__ import annotations

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import LOG_FOLDER, checkpoint_of, version_of_commit


def history(log: DeltaLog) -> dict[int, int]:
    """Time in milliseconds by version, both rising; empty where there is no table."""
    folder = log.path(LOG_FOLDER)
    commits: dict[int, int] = {}
    checkpoints: dict[int, int] = {}
    for entry in log.store.list(folder):
        name = entry.path.removeprefix(f"{folder}/")
        if (version := version_of_commit(name)) is not None:
            commits[version] = entry.modified_ms
        elif (checkpoint := checkpoint_of(name)) is not None:
            checkpoints[checkpoint.version] = entry.modified_ms
    times = {**checkpoints, **commits}
    bases = {*log.listing().checkpoints, *({0} & set(commits))}
    found: dict[int, int] = {}
    latest_ms = -1
    for version in sorted(times):
        if version in bases or (version - 1 in found and version in commits):
            latest_ms = found[version] = max(latest_ms + 1, times[version])
    return found
