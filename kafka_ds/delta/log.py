"""Shell: a Delta table's log: reading its versions, and winning the next one.

A commit is `_delta_log/N.json` by put-if-absent: each version has one winner. An exception is not "not committed", and
"exists" is not "lost": version N is read back, and the commit id in it decides; while it cannot be read, FateUnknown is
raised, and the same attempt is committed again. Put-if-absent is exclusive only while version N still exists, so the
known newest version is worth nothing after a quarter of the log's retention. One thread at a time.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafka_ds.delta.actions import (
    LOG_RETENTION_MS_MIN,
    Action,
    CorruptLog,
    decode_actions,
    metadata_action,
    protocol_action,
)
from kafka_ds.delta.commit import (
    Attempt,
    Change,
    Conflict,
    Contended,
    FateUnknown,
    NotCommitted,
    PlainChange,
    VersionsGone,
)
from kafka_ds.delta.names import (
    LOG_FOLDER,
    checkpoint_of,
    commit_file,
    last_checkpoint_file,
    version_of_commit,
)
from kafka_ds.delta.store.store import NotWritten, Store

# The pauses between tries of the same bytes at the same version: 1.5 s in all.
RETRY_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
VERSIONS_TRIED_MAX = 1000
# A log that is cleaned up keeps at least the versions of a minute.
SEEN_MS = 60_000
# A clock that is adjusted gradually moves by less between two looks at it.
LEAP_MS = 1_000


class ForeignTable(Exception):
    """A folder of the lake holds something that is not a table of kafka-ds; the message names it."""


class LogClock(Protocol):
    """The clocks of a log's writer."""

    def wall_ms(self) -> int:
        """The time of day, for the table's history alone."""

    def boot_ms(self) -> int:
        """A clock that never goes back and goes on while the machine sleeps."""

    def sleep(self, seconds: float) -> None:
        """Wait before the next try."""


class SystemLogClock:
    """The machine's clocks.

    A virtual machine that was paused, or brought back from a snapshot, may find that no clock but the time of day has
    advanced. So if that leaps ahead of the clock that counts sleep, the leap counts as sleep. (Until the time of day is
    set again, nothing on the machine shows the pause.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_ms = self.wall_ms() - since_boot_ms()
        """By how much the time of day was ahead of the other clock, when it was last looked at."""
        self._leapt_ms = 0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        with self._lock:
            boot_ms = since_boot_ms()
            ahead_ms = self.wall_ms() - boot_ms
            if ahead_ms - self._ahead_ms >= LEAP_MS:
                self._leapt_ms += ahead_ms - self._ahead_ms
            self._ahead_ms = ahead_ms
            return boot_ms + self._leapt_ms

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def since_boot_ms() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    nanoseconds = time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)
    return nanoseconds // 1_000_000


@dataclass(slots=True)
class LogListing:
    """What lies in a log: the versions with a commit file, the complete checkpoints."""

    commits: list[int] = field(default_factory=list)
    checkpoints: dict[int, list[str]] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        return max([*self.commits[-1:], *self.checkpoints], default=-1)


class DeltaLog:
    """The log of one table."""

    def __init__(self, store: Store, table: str, *, clock: LogClock | None = None) -> None:
        self.store = store
        self.table = table
        self.clock: LogClock = clock or SystemLogClock()
        self._log_retention_ms = LOG_RETENTION_MS_MIN
        self._latest: int | None = None
        self._latest_ms = 0
        """Every version above `_latest` was made after this moment: none of them is cleaned up for long."""
        self._seen_ms = 0
        """When `_latest` was last seen to be there."""

    def update_log_retention(self, log_retention_ms: int) -> None:
        """How long the table's log is kept, by its own properties."""
        self._log_retention_ms = log_retention_ms

    def path(self, name: str) -> str:
        """A file of the table, relative to the lake."""
        return f"{self.table}/{name}"

    def exists(self) -> bool:
        """Whether there is a table at all."""
        return self.latest_version() >= 0

    @property
    def known_version(self) -> int | None:
        """The newest version that was met, without a request; None if none was looked for."""
        return self._latest

    def latest_version(self) -> int:
        """The newest version, -1 where there is no table."""
        if self._latest is None or self._is_stale():
            return self._relist()
        version, began_ms = self._latest, self.clock.boot_ms()
        while self.store.size(self.path(commit_file(version + 1))) is not None:
            version += 1
        if self._is_stale():
            return self._relist()
        if version == self._latest:
            version = self._relist_if_cleaned_up(version)
        self._remember(version, began_ms)
        return version

    def _relist_if_cleaned_up(self, version: int) -> int:
        """The newest version if none follows; the log may have been cleaned up further than the table allows."""
        now_ms = self.clock.boot_ms()
        if version < 0 or now_ms - self._seen_ms < SEEN_MS:
            return version
        if self.store.size(self.path(commit_file(version))) is None:
            version = max(version, self._relist())
        self._seen_ms = now_ms
        return version

    def read_version(self, version: int) -> list[Action] | None:
        """The actions of one version; None where its file is not there, or no longer."""
        name = self.path(commit_file(version))
        try:
            body = self.store.read(name)
        except FileNotFoundError:
            return None
        return decode_actions(body, name)

    def versions_after(self, version: int) -> Iterator[tuple[int, list[Action]]]:
        """Each later version with its actions, up to the newest."""
        while (actions := self.read_version(version + 1)) is not None:
            version += 1
            yield version, actions

    def listing(self, *, start: int = 0) -> LogListing:
        """The commits and the complete checkpoints from version `start` on."""
        folder = self.path(LOG_FOLDER)
        after = f"{folder}/{start - 1:020d}~" if start > 0 else ""
        found = LogListing()
        parts: dict[int, dict[int, list[str]]] = {}
        for entry in self.store.list(folder, start_after=after):
            name = entry.path.removeprefix(f"{folder}/")
            if (version := version_of_commit(name)) is not None:
                found.commits.append(version)
            elif (checkpoint := checkpoint_of(name)) is not None:
                of_version = parts.setdefault(checkpoint.version, {})
                of_version.setdefault(checkpoint.parts, []).append(entry.path)
        for version, layouts in parts.items():
            for count, paths in layouts.items():
                if len(paths) == count:
                    found.checkpoints[version] = sorted(paths)
        found.commits.sort()
        return found

    def last_checkpoint(self) -> int | None:
        """The version that `_last_checkpoint` names: a hint, no more."""
        try:
            body = self.store.read(self.path(last_checkpoint_file()))
            version = json.loads(body)["version"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, int) and version >= 0 else None

    def create(
        self,
        *,
        schema_json: str,
        partition_columns: Sequence[str],
        configuration: Mapping[str, str],
        operation: str = "CREATE TABLE",
        passes: Callable[[str], bool] = lambda path: False,
    ) -> bool:
        """Make version 0; False if there is a table already.

        Raises ForeignTable where the folder holds files, others than those that `passes` says may be there before.
        """
        if self.exists():
            return False
        for entry in self.store.list(self.table):
            if not (entry.path.rpartition("/")[2].startswith(".") or passes(entry.path)):
                if self.exists():
                    return False  # Another writer has created it meanwhile.
                raise ForeignTable(f"{self.store.uri(self.table)} holds files but is not a table")

        def refuse(version: int, actions: Sequence[Action]) -> None:
            raise Conflict(f"{self.table} is there", version=version)

        metadata = metadata_action(
            table_id=str(uuid.uuid4()),
            schema_json=schema_json,
            partition_columns=partition_columns,
            configuration=configuration,
            created_ms=self.clock.wall_ms(),
        )
        change = PlainChange(operation, actions=[protocol_action(), metadata], check=refuse)
        try:
            self.commit(self.begin(change), read_version=-1)
        except Conflict:
            return False
        return True

    def begin(self, change: Change, *, begun_ms: int | None = None) -> Attempt:
        """A fresh attempt at a change; begin it before its files are written."""
        begun_ms = self.clock.boot_ms() if begun_ms is None else begun_ms
        return Attempt(change, commit_id=secrets.token_hex(16), begun_ms=begun_ms)

    def commit(self, attempt: Attempt, *, read_version: int) -> int:
        """Commit what was decided on the table as of `read_version`; returns the version won.

        Raises Conflict if a version in between ends the attempt, and a CommitError if no end could be reached. After
        FateUnknown, commit the same attempt again.
        """
        if attempt.won_version is not None:
            return attempt.won_version
        version = read_version + 1
        if (unsettled := attempt.open_version) is not None:
            try:
                self._relist_if_cleaned_up(-1 if self._latest is None else self._latest)
            except OSError as error:
                raise FateUnknown(f"{self.table}: {error}", attempt) from error
            if self._won(attempt, unsettled):
                return unsettled
            version = unsettled + 1
        elif self._latest is None or self._latest < read_version or self._is_stale():
            self.latest_version()
            assert self._latest is not None and self._latest >= read_version, (
                "read ahead of the log"
            )
        for _ in range(VERSIONS_TRIED_MAX):
            version = self._free_version(attempt, version)
            if self._won(attempt, version):
                return version
            version += 1
        raise Contended(f"{self.table}: lost {VERSIONS_TRIED_MAX} versions in a row", attempt)

    def _free_version(self, attempt: Attempt, version: int) -> int:
        """Inspect each version from `version` on; the first that is not there."""
        while True:
            began_ms = self.clock.boot_ms()
            try:
                actions = self.read_version(version)
            except CorruptLog as error:
                raise NotCommitted(str(error), attempt) from error
            if actions is not None:
                attempt.inspect(version, actions, began_ms)
                version += 1
                continue
            if self._latest is None or self._is_stale():
                self._relist()
            elif version == self._latest + 1:
                self._relist_if_cleaned_up(self._latest)
            assert self._latest is not None
            if version <= self._latest:
                if self.store.size(self.path(commit_file(version))) is not None:
                    continue
                raise VersionsGone(f"{self.table}: version {version} was cleaned up", attempt)
            self._remember(version - 1, began_ms)
            return version

    def _won(self, attempt: Attempt, version: int) -> bool:
        """Try one version until its outcome is known; False if it is another writer's."""
        began_ms = self.clock.boot_ms()
        name = self.path(commit_file(version))
        body = attempt.body(version, self.clock.wall_ms())
        was_open = attempt.trying(version, known_ms=self._latest_ms)
        failure: OSError | CorruptLog | None = None
        for pause in (0.0, *RETRY_PAUSES_SECONDS):
            if pause:
                self.clock.sleep(pause)
            try:
                if self.store.put_if_absent(name, body):
                    self._confirm_win(attempt, version, was_open)
                    self._remember(version, began_ms)
                    attempt.won(version)
                    return True
                actions = decode_actions(self.store.read(name), name)
                if attempt.is_ours(actions):
                    self._confirm_found(attempt, version)
                    attempt.won(version)
                    return True
            except NotWritten as error:
                failure = error
            except (OSError, CorruptLog) as error:
                failure, was_open = error, True
            else:
                attempt.inspect(version, actions, self.clock.boot_ms())
                return False
        if not was_open:
            attempt.not_written(version)
            raise NotCommitted(f"{name}: {failure}", attempt) from failure
        if isinstance(failure, NotWritten) and self._has_passed(attempt, version):
            raise VersionsGone(f"{self.table}: version {version} was cleaned up", attempt)
        raise FateUnknown(f"{name}: {failure}", attempt) from failure

    def _has_passed(self, attempt: Attempt, version: int) -> bool:
        """Whether a version with an unknown outcome is gone: a store may refuse a version that follows a hole."""
        if not self.is_long_past(attempt.known_ms):
            return False
        with contextlib.suppress(OSError):
            is_below = version < self._relist()
            return is_below and self.store.size(self.path(commit_file(version))) is None
        return False

    def _confirm_win(self, attempt: Attempt, version: int, was_open: bool) -> None:
        """After a long pause an old, cleaned up version may be won: check that it was not.

        The pause may also have come before the answer: then later commits follow the won version.
        """
        known_free = self._latest is not None and self._latest < version
        if known_free and not self._is_stale():
            return
        listing = self.listing(start=max(0, version - 1))
        if _is_in_place(listing, version):
            return
        self._latest = None
        if version in listing.commits and version not in listing.checkpoints:
            # It came after the clean-up, which removes a version together with its checkpoint, and may end at one with
            # both. If it is gone by now, that cannot be known: nothing is deleted.
            self.store.delete(self.path(commit_file(version)))
            if not was_open:
                attempt.lost(version)
        raise VersionsGone(f"{self.table}: version {version} is long past", attempt)

    def _confirm_found(self, attempt: Attempt, version: int) -> None:
        """A version found to be this commit counts, unless it may have come after its predecessor was cleaned up.

        It cannot if little time has passed since the version was known to be free. Later it must stand among its
        neighbours. In doubt nothing is decided, nothing deleted.
        """
        if not self.is_long_past(attempt.known_ms):
            return
        if _is_in_place(self.listing(start=max(0, version - 1)), version):
            return
        self._latest = None
        raise VersionsGone(f"{self.table}: version {version} may be long past", attempt)

    def is_long_past(self, seen_ms: int) -> bool:
        """Whether so much time has passed since `seen_ms` that versions may have been cleaned up."""
        return self.clock.boot_ms() - seen_ms > self._log_retention_ms // 4

    def _is_stale(self) -> bool:
        return self.is_long_past(self._latest_ms)

    def _remember(self, version: int, seen_ms: int) -> None:
        if version != self._latest:
            self._seen_ms = seen_ms
        self._latest, self._latest_ms = version, seen_ms

    def _relist(self) -> int:
        """Find the newest version without knowing any: from the last checkpoint on, by listing."""
        began_ms = self.clock.boot_ms()
        try:
            hint = self.last_checkpoint()
        except NotADirectoryError as error:
            where = self.store.uri(self.table)
            raise ForeignTable(f"{where} is a file, or lies below one") from error
        latest = self.listing(start=hint).latest if hint is not None else -1
        if latest < 0:
            latest = self.listing().latest
        self._remember(latest, began_ms)
        return latest


def _is_in_place(listing: LogListing, version: int) -> bool:
    """Whether an existing version cannot have come after its predecessor was cleaned up.

    A clean-up removes all up to some version, which lies below a checkpoint and below what came since.
    """
    if all(each < version for each in listing.checkpoints):
        return True
    is_last = version == listing.latest
    return version - 1 in listing.commits and (is_last or version + 1 in listing.commits)
