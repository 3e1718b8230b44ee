"""Shell: two logs with the same records swap their files: a log continues in the files of its copy.

Rules of this file:
- Holders of the log object (its partition, the tier, coordinators) keep it: its files change, the object does not.
  So nobody must be told, and offsets, producers and high watermark stay the same.
- A sync in progress concerns the old files: it says nothing of what is durable now, and moves no recovery point.
- Both must have the same offsets and epochs when they swap, as the copy takes over the log's epochs.
"""

from __future__ import annotations

from broker.log.log import Log


def take_epochs(copy: Log, log: Log) -> None:
    """Give a copy all leader epochs of its log, also those without a record, or without one left."""
    if copy.leader_epochs.entries == log.leader_epochs.entries:
        return
    copy.leader_epochs.clear()
    for epoch, start_offset in log.leader_epochs.entries:
        copy.assign_leader_epoch(epoch, start_offset)
    copy.epochs_file.changed()
    copy.epochs_file.write_now()  # Not all of them are in batches of the copy.


def exchange_files(log: Log, copy: Log) -> None:
    """Swap files: the log continues in its copy's files, and the copy has the log's."""
    assert copy.log_end_offset == log.log_end_offset
    assert copy.leader_epochs.entries == log.leader_epochs.entries
    log.compaction.cut()
    log.directory, copy.directory = copy.directory, log.directory
    log.segments, copy.segments = copy.segments, log.segments
    log.active, copy.active = copy.active, log.active
    log.leader_epochs, copy.leader_epochs = copy.leader_epochs, log.leader_epochs
    log.epochs_file, copy.epochs_file = copy.epochs_file, log.epochs_file
    log.durability, copy.durability = copy.durability, log.durability
    log.compaction.fail, copy.compaction.fail = copy.compaction.fail, log.compaction.fail
    log.files_changed()
    copy.files_changed()


def renamed(log: Log, directory: str) -> None:
    """The folder of a log was renamed."""
    log.directory = directory
    log.segments.renamed(directory)
    log.epochs_file.renamed(directory)


def skip_to(copy: Log, offset: int, now_ms: int) -> None:
    """Move a copy's end to its log's end, if compaction removed everything in between."""
    copy.active = copy.segments.begin(offset, copy.config, now_ms)
    copy.log_end_offset = offset
    copy.files_changed()
