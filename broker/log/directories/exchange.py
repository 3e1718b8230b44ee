"""Shell: two logs that hold the same change places: a log goes on in the files of its copy.

Rules of this file:
- Whoever holds the log (its partition, the tier, coordinators) goes on holding it: what it is made of changes, not it.
  So nobody has to be told, and offsets, producers and high watermark stay what they are.
- A sync that is under way is of the old files: it says nothing of what is durable now, and moves nothing.
- Both must hold the same offsets and epochs when they change places, as the copy takes the log's epochs with it.
"""

from __future__ import annotations

from broker.log.log import Log


def take_epochs(copy: Log, log: Log) -> None:
    """Let a copy know what its log knows of leader epochs, also of those that wrote nothing, or only what is gone."""
    if copy.leader_epochs.entries == log.leader_epochs.entries:
        return
    copy.leader_epochs.clear()
    for epoch, start_offset in log.leader_epochs.entries:
        copy.assign_leader_epoch(epoch, start_offset)
    copy.epochs_file.changed()
    copy.epochs_file.write_now()  # Not all of them are in batches of the copy.


def exchange_files(log: Log, copy: Log) -> None:
    """Let a log go on in its copy's files, and the copy stand for the log's."""
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
    """The folder of a log has got another name."""
    log.directory = directory
    log.segments.renamed(directory)
    log.epochs_file.renamed(directory)


def skip_to(copy: Log, offset: int, now_ms: int) -> None:
    """Let a copy end where its log does, which has nothing more in between: compaction took it."""
    copy.active = copy.segments.begin(offset, copy.config, now_ms)
    copy.log_end_offset = offset
    copy.files_changed()
