"""Shell: a table as of one version: its files and numbers, loaded once and followed through the log.

Loaded from the newest usable checkpoint, then version by version; followed by reading the versions that came since,
never from what a writer remembers of its own commits. After a pause so long that versions may have been cleaned up, it
is loaded again: the gap may hold commits of a paused writer. Other engines' actions are taken as they are: encoded or
absolute paths, no tags, no statistics, files of several commits at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kafka_ds.delta.actions import KIND_KEY, TXN_RETENTION_KEY, Action, CorruptLog
from kafka_ds.delta.checkpoint import CheckpointState, is_torn, read_checkpoint
from kafka_ds.delta.commit import vacuumed_age_ms
from kafka_ds.delta.deletion_vector import DeletionVector
from kafka_ds.delta.file_columns import FileMap
from kafka_ds.delta.file_entry import FileEntry
from kafka_ds.delta.log import DeltaLog, LogListing
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.statistics import UnsupportedFile, entry_of_add

LOADS_MAX = 3


class NoSuchTable(Exception):
    """There is no table at a folder of the lake."""


class NoSuchVersion(Exception):
    """A version of a table was never there, or was cleaned up."""


class TableSnapshot:
    """One table as of `version`."""

    def __init__(
        self, log: DeltaLog, *, reads_vectors: bool = False, base_before: int | None = None
    ) -> None:
        """Without `reads_vectors` a version in which a file has a deletion vector is refused.

        `base_before`: only checkpoints of earlier versions are used.
        """
        self.log = log
        self._base_before = base_before
        self._reads_vectors = reads_vectors
        self.version = -1
        self.protocol: Mapping[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.txns: dict[str, int] = {}
        self.files = FileMap()
        """By path, relative to the lake or absolute: engines encode the same path differently."""
        self.gone_before_ms = 0
        """Files begun at that time or before it, and not committed yet, may be gone: vacuums were met, or missed. By a
        clock that counts sleep.
        """
        self._seen_ms = 0
        self._vectors: set[str] = set()
        """Files that have a deletion vector."""

    @property
    def configuration(self) -> Mapping[str, str]:
        configuration: Mapping[str, str] = self.metadata.get("configuration", {})
        return configuration

    @property
    def kind(self) -> str | None:
        """The kind of a kafka-ds table; None for others."""
        return self.configuration.get(KIND_KEY)

    def vectors(self) -> dict[str, DeletionVector]:
        """The deletion vectors of files, by path."""
        found = {path: self.files[path].vector for path in self._vectors}
        return {path: vector for path, vector in found.items() if vector is not None}

    def has_file(self, action_path: str, vector_id: str | None = None) -> bool:
        entry = self.files.get(resolve_path(self.log.table, action_path))
        return entry is not None and entry.vector_id == vector_id

    def read(self, version: int | None = None) -> None:
        """Read the table again as of `version`, or of the newest."""
        began_ms = self.log.clock.boot_ms()
        # Versions since the last look may have been cleaned up, announcements too.
        self.gone_before_ms = began_ms - 1
        for _ in range(LOADS_MAX):
            listing = self._listing(version)
            if listing.latest < 0:
                raise NoSuchTable(f"{self.log.store.uri(self.log.table)} is no table")
            state = self._checkpoint(listing, version)
            self.version = -1
            self._load_checkpoint(state)
            self.version = state.version
            self._follow(version)
            goal = listing.latest if version is None else version
            if self.version >= goal:
                self._refuse_vectors()
                # Not before all is read: what a read that failed has left is as old as it was.
                self._seen_ms = began_ms
                return
            # A clean-up ran meanwhile, or the version does not exist.
        raise NoSuchVersion(f"{self.log.store.uri(self.log.table)}: version {goal} is not there")

    def forget(self) -> None:
        """Read everything again the next time."""
        self.version = -1

    def refresh(self) -> bool:
        """Follow the log to its newest version, or read it all the first time; whether there was anything new."""
        before, began_ms = self.version, self.log.clock.boot_ms()
        if before < 0 or self.log.is_long_past(self._seen_ms):
            self.read()
            return self.version != before
        self._follow(None)
        self._refuse_vectors()
        self._seen_ms = began_ms
        if self.version == before and self.log.latest_version() > before:
            self.read()
        return self.version != before

    def _refuse_vectors(self) -> None:
        if self._vectors and not self._reads_vectors:
            self.forget()
            raise UnsupportedFile(
                f"{min(self._vectors)} has a deletion vector, which are read of topics' tables alone: "
                f"REORG TABLE delta.`{self.log.store.uri(self.log.table)}` APPLY (PURGE) takes them out"
            )

    def _listing(self, version: int | None) -> LogListing:
        hint = self.log.last_checkpoint()
        if hint is not None and (version is None or version >= hint):
            listing = self.log.listing(start=hint)
            if hint in listing.checkpoints:
                return listing
        return self.log.listing()

    def _checkpoint(self, listing: LogListing, version: int | None) -> CheckpointState:
        """The newest readable checkpoint that is not too new.

        Raises CorruptLog if there is none, and OSError if the store does not return an existing one.
        """
        failure: Exception | None = None
        unread: dict[int, list[str]] = {}
        hiding: CheckpointState | None = None
        for listed in (listing, None):
            found = (listed or self.log.listing()).checkpoints
            for each in sorted(found, reverse=True):
                if not self._is_eligible(each, version):
                    continue
                try:
                    state = read_checkpoint(self.log.store, self.log.table, each, found[each])
                except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                    failure, unread[each] = failure or error, found[each]
                    continue
                if (complaint := self._complaint_of(state)) is not None:
                    failure = failure or ValueError(
                        f"the checkpoint of version {each}: {complaint}"
                    )
                elif self._hides(state):
                    hiding = hiding or state
                else:
                    return state
        if self.log.read_version(0) is None:
            if hiding is not None:
                return hiding
            self._raise_if_away(unread, failure)
            why = "" if failure is None else f" ({failure})"
            raise CorruptLog(
                f"{self.log.table}: neither a checkpoint nor version 0{why}"
            ) from failure
        return CheckpointState()

    def _is_eligible(self, checkpoint: int, version: int | None) -> bool:
        before = self._base_before
        return (version is None or checkpoint <= version) and (
            before is None or checkpoint < before
        )

    def _complaint_of(self, state: CheckpointState) -> str | None:
        """Why a readable checkpoint must not be used, so that an earlier one is; None if it may."""
        return None

    def _hides(self, state: CheckpointState) -> bool:
        """Whether a checkpoint may hide what has to be seen: an earlier one is used if there is one.

        Engines that were set to drop `txn` actions may have left some out.
        """
        return TXN_RETENTION_KEY in state.metadata["configuration"]

    def _raise_if_away(
        self, unread: Mapping[int, Sequence[str]], failure: Exception | None
    ) -> None:
        """Distinguish a store that did not answer from a log that is damaged, which some give up for good."""
        log = self.log
        if not all(is_torn(log.store, log.table, each, unread[each]) for each in unread):
            raise OSError(f"{log.table}: no checkpoint can be read now: {failure}") from failure

    def _load_checkpoint(self, state: CheckpointState) -> None:
        self.protocol, self.metadata = state.protocol, state.metadata
        self.txns = dict(state.txns)
        self.files = FileMap(state.files)
        self._vectors = {state.files[at].path for at in state.files.vectors}

    def _follow(self, version: int | None) -> None:
        if version is not None and version <= self.version:
            return
        for each, actions in self.log.versions_after(self.version):
            self._apply(each, actions)
            if each == version:
                return

    def _apply(self, version: int, actions: Sequence[Action]) -> None:
        self.version = (
            -1
        )  # If this fails, half of the version is applied: everything is read again then.
        try:
            removed, added = self._apply_actions(actions)
            self._applied(version, actions, removed, added)
            if (age_ms := vacuumed_age_ms(actions)) is not None:
                gone_before_ms = self.log.clock.boot_ms() - age_ms
                self.gone_before_ms = max(self.gone_before_ms, gone_before_ms)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # JSON, but no action of the protocol.
            raise CorruptLog(f"{self.log.table}, version {version}: {error!r}") from error
        self.version = version

    def _apply_actions(
        self, actions: Sequence[Action]
    ) -> tuple[list[FileEntry], dict[str, FileEntry]]:
        removed: list[FileEntry] = []
        added: dict[str, FileEntry] = {}
        for action in actions:
            if "add" in action:
                entry = entry_of_add(self.log.table, action["add"])
                added[entry.path] = entry
                # Engines that complete a file's statistics add it once more.
                before = self.files.pop(entry.path, None)
                if before is not None:
                    removed.append(before)
            elif "remove" in action:
                path = resolve_path(self.log.table, action["remove"]["path"])
                gone = self.files.pop(path, None)
                self._vectors.discard(path)
                if gone is not None:
                    removed.append(gone)
            elif "txn" in action:
                self.txns[action["txn"]["appId"]] = action["txn"]["version"]
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
        self.files.update(added)
        self._vectors -= added.keys()
        self._vectors |= {path for path, entry in added.items() if entry.vector is not None}
        return removed, added

    def _applied(
        self,
        version: int,
        actions: Sequence[Action],
        removed: Sequence[FileEntry],
        added: Mapping[str, FileEntry],
    ) -> None:
        """A version was applied; for subclasses that keep more than the files."""
