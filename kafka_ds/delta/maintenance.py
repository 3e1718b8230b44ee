"""Shell: the maintenance of a table: checkpoints, the log's clean-up, the removal of orphans.

- Nothing is unlinked before its replacement was made durable, read again and compared, whoever wrote it.
- The log is cleaned oldest first, only below a checkpoint that is itself older than the retention (see `log`).
- A vacuum is announced by a commit before any file is deleted; later commits give up old files (`commit`).
- The store's own times decide how old a file is: this machine's clock may be days ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kafka_ds.delta.actions import (
    DAY_MS,
    LOG_RETENTION_MS_MIN,
    CorruptLog,
    decode_actions,
    interval_ms,
)
from kafka_ds.delta.checkpoint import CheckpointState, FilesElsewhere, is_torn, read_checkpoint
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.deletion_vector import vector_of
from kafka_ds.delta.features import unsupported
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import (
    LOG_FOLDER,
    checkpoint_of,
    commit_file,
    last_checkpoint_file,
    resolve_path,
    version_of_commit,
)
from kafka_ds.delta.snapshot import NoSuchVersion, TableSnapshot
from kafka_ds.delta.store.store import TEMPORARY_SUFFIX, StoreEntry

CHECKPOINT_INTERVAL = 100
# After an announced vacuum attempts give up files that are an hour old: the horizon is far beyond that.
ORPHAN_AGE_MS_MIN = DAY_MS
ORPHAN_AGE_MS = 7 * DAY_MS
# A version in the log counts only if it can be read.
KEPT_PROPERTIES = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")


class BadCheckpoint(Exception):
    """A checkpoint does not hold what its version holds; it was removed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """The result of a round of maintenance."""

    checkpoint_version: int | None
    log_files_deleted: int


def maintain(
    log: DeltaLog,
    *,
    now_ms: int,
    interval: int = CHECKPOINT_INTERVAL,
    keep_from: int | None = None,
) -> MaintenanceResult:
    """Write a checkpoint if one is due, and clean up what it makes superfluous."""
    latest = log.latest_version()
    due = latest - (log.last_checkpoint() or 0) >= interval
    version = _write_where_one_may_be_torn(log) if due else None
    deleted = clean_log(log, now_ms=now_ms, keep_from=keep_from)
    return MaintenanceResult(checkpoint_version=version, log_files_deleted=deleted)


def _write_where_one_may_be_torn(log: DeltaLog) -> int:
    """Remove first what would keep a checkpoint from being written or verified: a torn or wrong one."""
    for version in sorted(log.listing().checkpoints, reverse=True):
        if not is_disproved(log, version):
            break
        _drop_checkpoint(log, version)
    try:
        return write_checkpoint(log)
    except (BadCheckpoint, DeltaError, OSError, ValueError):
        if not drop_torn_checkpoints(log):
            raise
    return write_checkpoint(log)


def is_disproved(log: DeltaLog, version: int) -> bool:
    """Whether the log before a checkpoint of any engine contradicts it, as far as that is there.

    An engine may have left out `txn` actions, if it was set to drop them.
    """
    expected = TableSnapshot(log, reads_vectors=True, base_before=version)
    try:
        expected.read(version)
    except (CorruptLog, NoSuchVersion):
        return False
    paths = log.listing(start=version).checkpoints.get(version, [])
    try:
        found = read_checkpoint(log.store, log.table, version, paths)
    except FilesElsewhere:
        return False
    except (ValueError, KeyError):
        return True
    return not _says(found, expected)


def write_checkpoint(log: DeltaLog) -> int:
    """Write a checkpoint of the newest version, make it durable, and verify it; returns its version."""
    table = DeltaTable(log.store.uri(log.table), storage_options=log.store.delta_options)
    version = table.version()
    expected = TableSnapshot(log, reads_vectors=True)
    expected.read(version)
    table.create_checkpoint()
    paths = log.listing(start=version).checkpoints.get(version, [])
    for path in paths:
        log.store.make_durable(path)
    _drop_checksums(log, [*paths, log.path(last_checkpoint_file())])
    if not paths or not checkpoint_holds(log, version, paths, expected):
        _drop_checkpoint(log, version)
        raise BadCheckpoint(f"{log.store.uri(log.table)}: the checkpoint of version {version}")
    log.store.make_durable(log.path(last_checkpoint_file()))
    return version


def _drop_checksums(log: DeltaLog, paths: Iterable[str]) -> None:
    """Remove checksums that Hadoop has put beside files that Spark wrote there before.

    Otherwise Spark would refuse `_last_checkpoint`, try again for seconds, and list the log.
    """
    for path in paths:
        folder, _, name = path.rpartition("/")
        if log.store.local_path(path) is not None:
            log.store.delete(f"{folder}/.{name}.crc")


def checkpoint_holds(
    log: DeltaLog, version: int, paths: list[str], expected: TableSnapshot
) -> bool:
    """Whether a checkpoint that was written reads back as the version that it is of."""
    try:
        found = read_checkpoint(log.store, log.table, version, paths)
    except ValueError:
        return False
    return (
        _says(found, expected)
        and found.metadata["schemaString"] == expected.metadata["schemaString"]
        and found.metadata["configuration"] == expected.metadata["configuration"]
    )


def _says(found: CheckpointState, expected: TableSnapshot) -> bool:
    """Whether files, their deletion vectors and all numbers are as the log says."""
    return (
        found.files.sizes() == expected.files.sizes()
        and {found.files[at].path: each for at, each in found.files.vectors.items()}
        == expected.vectors()
        and dict(found.txns) == expected.txns
    )


def _drop_checkpoint(log: DeltaLog, version: int) -> None:
    """Remove a checkpoint, and first what names it."""
    if log.last_checkpoint() == version:
        log.store.delete(log.path(last_checkpoint_file()))
    for path in log.listing(start=version).checkpoints.get(version, ()):
        log.store.delete(path)


def clean_log(
    log: DeltaLog,
    *,
    now_ms: int,
    retention_ms: int | None = None,
    keep_from: int | None = None,
) -> int:
    """Delete the log's files that no state since the retention needs; returns their number.

    `keep_from` is a version from which on every commit is needed.
    """
    folder = log.path(LOG_FOLDER)
    entries = log.store.list(folder)
    modified = {entry.path: entry.modified_ms for entry in entries}
    now_ms = min(now_ms, max(modified.values(), default=0))
    checkpoints = log.listing().checkpoints

    def expired(at_least_ms: int) -> list[int]:
        cutoff = now_ms - at_least_ms
        return [
            version
            for version, paths in checkpoints.items()
            if all(modified.get(path, now_ms) <= cutoff for path in paths)
            and modified.get(log.path(commit_file(version)), 0) <= cutoff
            and (keep_from is None or version <= keep_from)
        ]

    highest = max(expired(LOG_RETENTION_MS_MIN), default=0)
    if not any(0 <= _version_of(entry, folder) < highest for entry in entries):
        return 0  # Without reading a checkpoint: mostly there is nothing to do.
    newest = max(checkpoints)
    state = read_checkpoint(log.store, log.table, newest, checkpoints[newest])
    if unsupported(state.protocol, state.metadata):
        return 0
    kept_ms = max(retention_ms or _retention_ms(state), LOG_RETENTION_MS_MIN)
    boundary = max(expired(kept_ms), default=0)
    if not boundary:
        return 0
    cutoff = now_ms - kept_ms
    if is_disproved(log, boundary):
        _drop_checkpoint(log, boundary)
        raise BadCheckpoint(f"{log.store.uri(log.table)}: the checkpoint of version {boundary}")
    read_checkpoint(log.store, log.table, boundary, checkpoints[boundary])
    doomed = [
        entry
        for entry in entries
        if 0 <= _version_of(entry, folder) < boundary and entry.modified_ms <= cutoff
    ]
    for entry in sorted(doomed, key=lambda entry: _version_of(entry, folder)):
        log.store.delete(entry.path)
    return len(doomed)


def _retention_ms(state: CheckpointState) -> int:
    text = state.metadata["configuration"].get("delta.logRetentionDuration", "interval 30 days")
    return interval_ms(text) or 30 * DAY_MS


def _version_of(entry: StoreEntry, folder: str) -> int:
    """The version of a commit's, a checkpoint's or a checksum's file; -1 for all others."""
    name = entry.path.removeprefix(f"{folder}/")
    if (version := version_of_commit(name)) is not None:
        return version
    if (checkpoint := checkpoint_of(name)) is not None:
        return checkpoint.version
    checksum = version_of_commit(f"{name.removesuffix('.crc')}.json")
    return -1 if checksum is None else checksum


def vacuum(
    log: DeltaLog,
    *,
    now_ms: int,
    older_than_ms: int = ORPHAN_AGE_MS,
    lost: Collection[str] = (),
    kept: Callable[[TableSnapshot], Iterable[str]] = lambda snapshot: (),
    dry_run: bool = False,
) -> list[str]:
    """Delete the files that no version since the horizon refers to; returns their paths.

    A table that keeps its history, or the files it no longer needs, for longer than `older_than_ms` keeps them so long.
    `lost` are files in folders that begin with an underscore, which no version mentions; `kept` returns those that stay
    though no version refers to them.
    """
    if older_than_ms < ORPHAN_AGE_MS_MIN:
        raise ValueError(f"older_than_ms={older_than_ms}: orphans live a day at least")
    snapshot = TableSnapshot(log, reads_vectors=True)
    snapshot.read()
    if unsupported(snapshot.protocol, snapshot.metadata):
        return []  # What a feature keeps beside the files is not known here (vacuumProtocolCheck asks for this).
    older_than_ms = max([older_than_ms, *_kept_ms(snapshot)])
    found = _orphans(log, now_ms - older_than_ms, lost, kept)
    if dry_run or not found:
        return found
    announcement = PlainChange("VACUUM START", info={"olderThanMs": older_than_ms})
    version = log.commit(log.begin(announcement), read_version=snapshot.version)
    now_ms = min(now_ms, _modified_ms(log, version))
    # Once more: what was committed before the announcement is no orphan.
    found = _orphans(log, now_ms - older_than_ms, lost, kept)
    for path in found:
        log.store.delete(path)
    return found


def _modified_ms(log: DeltaLog, version: int) -> int:
    """When a version was written, by the store's clock."""
    folder, name = log.path(LOG_FOLDER), log.path(commit_file(version))
    entries = log.store.list(folder, start_after=name.removesuffix(".json"))
    return next((each.modified_ms for each in entries if each.path == name), 0)


def _kept_ms(snapshot: TableSnapshot) -> list[int]:
    """How long the table keeps its older versions readable."""
    texts = (snapshot.configuration.get(name, "") for name in KEPT_PROPERTIES)
    return [interval_ms(text) or 0 for text in texts]


def _orphans(
    log: DeltaLog,
    horizon_ms: int,
    lost: Collection[str],
    kept: Callable[[TableSnapshot], Iterable[str]],
) -> list[str]:
    snapshot = TableSnapshot(log, reads_vectors=True)
    snapshot.read()
    alive = set(snapshot.files) | _removed_since(log, horizon_ms)
    alive |= {each.path for each in snapshot.vectors().values() if each.path}
    alive |= set(kept(snapshot))
    # An absolute path may name a file of this very folder in more than one way.
    names = {path.rpartition("/")[2] for path in alive if not path.startswith(f"{log.table}/")}
    return [
        entry.path
        for entry in log.store.list(log.table)
        if entry.modified_ms < horizon_ms
        and entry.path not in alive
        and entry.path.rpartition("/")[2] not in names
        and _may_go(entry.path.removeprefix(f"{log.table}/"), entry.path, lost)
    ]


def _may_go(name: str, path: str, lost: Collection[str]) -> bool:
    last = name.rpartition("/")[2]
    if path in lost or (last.startswith(".") and last.endswith(TEMPORARY_SUFFIX)):
        return True
    # Files of deletion vectors are named by the files that have them, which is not looked into here.
    return not (last.endswith(".bin") or any(p.startswith(("_", ".")) for p in name.split("/")))


def _removed_since(log: DeltaLog, horizon_ms: int) -> set[str]:
    """The files that commits since the horizon removed: older versions are still read with them."""
    found: set[str] = set()
    folder = log.path(LOG_FOLDER)
    for entry in log.store.list(folder):
        version = version_of_commit(entry.path.removeprefix(f"{folder}/"))
        if version is None or entry.modified_ms < horizon_ms:
            continue
        body = log.store.read(entry.path)
        if b'"remove"' not in body:
            continue  # Most of a week's commits are adds: not worth the parsing.
        for action in decode_actions(body, entry.path):
            if "remove" in action:
                remove = action["remove"]
                found.add(resolve_path(log.table, remove["path"]))
                if (vector := vector_of(log.table, remove.get("deletionVector"))) is not None:
                    found.add(vector.path)
    return found


def drop_torn_checkpoints(log: DeltaLog) -> list[int]:
    """Remove checkpoints that cannot be read, where the log goes on without them.

    Others write checkpoints without fsync; after a loss of power one may be there and empty, and engines that trust
    `_last_checkpoint` would not open the table.
    """
    dropped = []
    listing = log.listing()
    good = -1
    for version in sorted(listing.checkpoints):
        if not is_torn(log.store, log.table, version, listing.checkpoints[version]):
            good = version
        elif _continuous(listing.commits, good + 1, version):
            dropped.append(version)
    for version in dropped:
        _drop_checkpoint(log, version)
    return dropped


def _continuous(commits: list[int], start: int, end: int) -> bool:
    return set(range(start, end + 1)) <= set(commits)
