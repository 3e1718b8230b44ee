"""Shell: a store that is a copy of another one, made object by object in any order, as far as it has wholly arrived.

Only the log of a table is filtered: versions after the last whole one (`arrivals`), and those before the version that
it rests on, seem not to be there. What a reader finds by the log is there. A table's last whole version never goes
back. When it cannot go on, a later checkpoint is looked for, as what is missing may have been deleted by now.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from kafka_ds.delta.actions import Action, CorruptLog
from kafka_ds.delta.arrivals import (
    ANY_SIZE,
    Arrival,
    ArrivedCommit,
    Needed,
    NeededFile,
    absent,
    commit_of,
    last_whole,
    needed_by,
)
from kafka_ds.delta.log import DeltaLog, LogClock, LogListing, SystemLogClock
from kafka_ds.delta.names import LOG_FOLDER, checkpoint_of, commit_file, version_of_commit
from kafka_ds.delta.store.store import Store, StoreEntry
from kafka_ds.delta.store.wrapper import WrappedStore

# Between looks for a later checkpoint, each of which lists the table.
RELIST_MS = 5_000
# The same where nothing is known to be missing.
IDLE_MS = 60_000
# The same of a log that is read version by version: its readers begin again after a leap.
LEAP_MS = 600_000
_IN_LOG = re.compile(rf"(.+)/{LOG_FOLDER}/([^/]+)")

IsBeginning = Callable[[Sequence[Action]], bool]


class ArrivedStore(WrappedStore):
    """The copy, as far as it has arrived."""

    def __init__(
        self,
        store: Store,
        *,
        is_beginning: IsBeginning | None = None,
        clock: LogClock | None = None,
    ) -> None:
        """With `is_beginning` a log is all that is read of a table, from a version on of which it says True."""
        super().__init__(store)
        self._is_beginning = is_beginning
        self._clock: LogClock = clock or SystemLogClock()
        self._tables: dict[str, ArrivedTable] = {}
        self._lock = threading.Lock()

    def arrivals(self) -> list[Arrival]:
        """How far each table has arrived that was asked for."""
        with self._lock:
            tables = list(self._tables.values())
        return [each.arrival() for each in tables]

    def _table(self, name: str) -> ArrivedTable:
        with self._lock:
            table = self._tables.get(name)
            if table is None:
                table = self._tables[name] = ArrivedTable(
                    self._store, name, self._is_beginning, self._clock
                )
            return table

    def _is_shown(self, path: str) -> bool:
        found = _place_of(path)
        return found is None or self._table(found[0]).shows(found[1])

    def read(self, path: str) -> bytes:
        if not self._is_shown(path):
            raise FileNotFoundError(f"{path} has not wholly arrived")
        return self._store.read(path)

    def size(self, path: str) -> int | None:
        return self._store.size(path) if self._is_shown(path) else None

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        found = self._store.list(prefix, start_after=start_after)
        places = [_place_of(each.path) for each in found]
        shown = {name: self._table(name).shown() for name in {each[0] for each in places if each}}
        return tuple(
            entry
            for entry, place in zip(found, places, strict=True)
            if place is None or place[1] in shown[place[0]]
        )


class ArrivedTable:
    """One table of the copy. Any thread."""

    def __init__(
        self, store: Store, name: str, is_beginning: IsBeginning | None, clock: LogClock
    ) -> None:
        self._store = store
        self._name = name
        self._log = DeltaLog(store, name, clock=clock)
        self._is_beginning = is_beginning
        self._clock = clock
        self._lock = threading.RLock()
        # Versions from `_first` to `_whole` are shown.
        self._first, self._whole = 0, -1
        # The log after the last whole version, without a gap, and what its end lacks.
        self._waiting: list[ArrivedCommit] = []
        self._lacks: Needed = {}
        self._newest = -1
        self._listed_ms: int | None = None
        # Files that were seen, of commits that wait.
        self._seen: set[NeededFile] = set()
        # Files that were looked for in vain in this look.
        self._absent: set[NeededFile] = set()

    def shows(self, version: int) -> bool:
        """Whether a version, or a checkpoint of it, may be read."""
        with self._lock:
            if version > self._whole:
                self._advance()
            return self._first <= version <= self._whole

    def shown(self) -> range:
        """The versions that may be read, once what has come since was looked for."""
        with self._lock:
            self._advance()
            return range(self._first, self._whole + 1)

    def arrival(self) -> Arrival:
        """How far it has arrived."""
        with self._lock:
            missing = next((files[0].path for files in self._lacks.values()), "")
            end = self._waiting[-1].version if self._waiting else self._whole
            if not missing and self._newest > end:
                missing = self._log.path(commit_file(end + 1))
            return Arrival(
                table=self._name,
                version=self._whole,
                newest=max(self._newest, end),
                waits_for=missing,
                since_ms=self._waiting[0].timestamp_ms if self._waiting else 0,
            )

    # -- following --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Look for what has come after the last whole version."""
        if self._whole >= 0:
            self._read_on()
            self._settle(self._whole, {}, self._waiting)
        now_ms = self._clock.boot_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= self._patience_ms():
            # A look that failed says nothing: the next one is not made to wait.
            self._begin()
            self._listed_ms = now_ms

    def _patience_ms(self) -> int:
        """How long after the last look for a later beginning the next one is made."""
        if self._whole < 0:
            return RELIST_MS
        if self._is_beginning is not None:
            return LEAP_MS
        is_idle = not self._waiting and self._newest <= self._whole
        # A version after a gap is not met otherwise.
        return IDLE_MS if is_idle else RELIST_MS

    def _settle(self, base: int, lacks: Needed, commits: Sequence[ArrivedCommit]) -> bool:
        """Take the last whole version of these; whether there is one that was not shown before."""
        self._absent.clear()
        whole, left = last_whole(base, lacks, commits, self._is_there)
        if self._whole < 0:
            self._lacks = left
        if whole is None or whole < self._whole or (whole == self._whole and base != whole):
            return False
        advanced = whole > self._whole
        self._whole, self._lacks = whole, left
        self._waiting = [each for each in commits if each.version > whole]
        if advanced:
            self._seen.clear()
        return advanced

    def _read_on(self) -> None:
        """Read the log up to its end, or the first gap."""
        after = self._waiting[-1].version if self._waiting else self._whole
        self._waiting += self._commits_after(after)
        if self._waiting:
            self._newest = max(self._newest, self._waiting[-1].version)

    def _commits_after(self, version: int) -> Iterator[ArrivedCommit]:
        while True:
            version += 1
            try:
                actions = self._log.read_version(version)
                if actions is None:
                    return
                commit = commit_of(self._name, version, actions)
            except (CorruptLog, AttributeError, KeyError, TypeError, ValueError):
                return  # Half of it is there, or it is damaged: it is what is waited for.
            if self._is_beginning is not None:
                commit = ArrivedCommit(
                    version=version,
                    timestamp_ms=commit.timestamp_ms,
                    removed=frozenset(),
                    added={},
                )
            yield commit

    def _is_there(self, file: NeededFile) -> bool:
        if file in self._seen:
            return True
        if file in self._absent:
            return False
        size = self._store.size(file.path)
        is_there = size is not None and file.size in (ANY_SIZE, size)
        (self._seen if is_there else self._absent).add(file)
        return is_there

    # -- beginning --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Look for a version at which all files are known, later than what is shown."""
        listing = self._log.listing()
        self._newest = max(self._newest, listing.latest)
        bases = self._beginnings(listing) if self._is_beginning else self._bases(listing)
        for base, lacks in bases:
            if self._settle(base, lacks, list(self._commits_after(base))):
                self._first = max(base, 0)
                return

    def _bases(self, listing: LogListing) -> Iterator[tuple[int, Needed]]:
        """Versions to begin after, with the files that the table lacks there, the newest first."""
        there: Mapping[str, int] | None = None
        for version in sorted(listing.checkpoints, reverse=True):
            if version <= self._whole:
                return
            if there is None:
                there = {each.path: each.size for each in self._store.list(self._name)}
            needed = self._needed_at(version, listing.checkpoints[version])
            if needed is not None:
                yield version, absent(needed, partial(self._is_listed, there))
        if self._whole < 0 and listing.commits[:1] == [0]:
            yield -1, {}

    def _is_listed(self, there: Mapping[str, int], file: NeededFile) -> bool:
        size = there.get(file.path)
        return self._is_there(file) if size is None else file.size in (ANY_SIZE, size)

    def _needed_at(self, version: int, paths: Sequence[str]) -> Needed | None:
        """The files of a checkpoint's table; None if it cannot be read (now)."""
        # A process that only follows the metadata loads no Arrow.
        from kafka_ds.delta.checkpoint import read_checkpoint

        try:
            state = read_checkpoint(self._store, self._name, version, paths)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, an earlier one or a later look may do
            return None
        return {
            each.path: needed_by(
                self._name,
                each.path,
                each.size,
                {"deletionVector": each.vector.action() if each.vector else None},
            )
            for each in state.files
        }

    def _beginnings(self, listing: LogListing) -> Iterator[tuple[int, Needed]]:
        """The same of a table of which the log is all that is read: in each run of versions the last beginning."""
        assert self._is_beginning is not None
        commits = set(listing.commits)
        for end in sorted((each for each in commits if each + 1 not in commits), reverse=True):
            version = end
            while version in commits and version > self._whole:
                actions = self._read(version)
                if actions is None:
                    break
                if version == 0 or self._is_beginning(actions):
                    # The version itself counts.
                    yield version, {}
                    break
                version -= 1

    def _read(self, version: int) -> list[Action] | None:
        with contextlib.suppress(CorruptLog):
            return self._log.read_version(version)
        return None


def _place_of(path: str) -> tuple[str, int] | None:
    """The table and version of a commit or checkpoint; None for other files."""
    match = _IN_LOG.fullmatch(path)
    if match is None:
        return None
    version = version_of_commit(match[2])
    if version is None and (checkpoint := checkpoint_of(match[2])) is not None:
        version = checkpoint.version
    return None if version is None else (match[1], version)
