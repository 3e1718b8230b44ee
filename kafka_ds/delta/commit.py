"""Pure: one commit on its way: its content, the versions it tried, and what came between.

- A commit is known by its id alone: an answer may be lost, and a lost answer looks like a conflict.
- Each version that another writer took is inspected before the next try; it may end the attempt.
- For one version the bytes never change: while its outcome is unknown, the same bytes are tried again.
- Files may be deleted only when every tried version is seen to be another writer's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from kafka_ds.delta.actions import (
    Action,
    commit_info,
    commit_info_action,
    encode_actions,
    kafka_ds_info,
)

# An attempt whose files are older than this ends when another writer vacuumed meanwhile: the files may be among those
# that were deleted. (Orphans live for days: see `maintenance`.)
FILES_AGE_MS_MAX = 3_600_000
# How engines announce the age from which on files are deleted; the first that is there counts.
ANNOUNCED_AGES = ("specifiedRetentionMillis", "defaultRetentionMillis")


def vacuumed_age_ms(actions: Sequence[Action]) -> int | None:
    """If a version announces, or reports, the deletion of files that no version refers to: from which age on.

    The retention that a VACUUM announces, at most `FILES_AGE_MS_MAX`, which is also the default.
    """
    info = commit_info(actions)
    if not str(info.get("operation", "")).startswith("VACUUM"):
        return None
    parameters: Any = info.get("operationParameters")
    for name in ANNOUNCED_AGES if isinstance(parameters, dict) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return max(0, min(int(parameters[name]), FILES_AGE_MS_MAX))
    return FILES_AGE_MS_MAX


class Fate(Enum):
    """What is known of a version that an attempt tried."""

    OPEN = "open"
    TAKEN = "taken"
    WON = "won"


class Conflict(Exception):
    """A version in between ends the attempt, or its part for `partitions` (empty: all of it)."""

    def __init__(self, message: str, *, version: int = -1, partitions: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.version = version
        self.partitions = frozenset(partitions)


class FilesMayBeGone(Conflict):
    """Orphans were vacuumed since, and the attempt's files are old enough to be among them."""


class CommitError(Exception):
    """A commit did not reach an end that is known to be good."""

    def __init__(self, message: str, attempt: Attempt) -> None:
        super().__init__(message)
        self.attempt = attempt


class NotCommitted(CommitError):
    """The store failed before anything became visible: the attempt may be repeated or dropped."""


class FateUnknown(CommitError):
    """The store cannot say whether the commit is there: commit the same attempt again, delete nothing."""


class VersionsGone(CommitError):
    """Versions in between were cleaned up: read the table again and decide again."""


class Contended(NotCommitted):
    """Others won version after version: nothing is committed."""


class Change(Protocol):
    """What a commit does, asked for each version that it tries."""

    @property
    def operation(self) -> str:
        """Delta's word for the table's history, or a kafka-ds word if Delta has none."""

    @property
    def parameters(self) -> Mapping[str, str]:
        """The operation's parameters in the history."""

    @property
    def has_files(self) -> bool:
        """Whether it adds files that were there before its first try: a VACUUM meanwhile may have taken them."""

    def check(self, version: int, actions: Sequence[Action]) -> None:
        """Look at another writer's version; raise Conflict when it ends the attempt."""

    def actions(self, version: int) -> Sequence[Action]:
        """The actions for a try at `version`."""

    def info(self) -> Mapping[str, Any]:
        """What goes into the commitInfo beside the commit id."""


CommitCheck = Callable[[int, Sequence[Action]], None]
# The parameters of Delta's operation WRITE, where it adds rows.
APPEND_MODE: Mapping[str, str] = {"mode": "Append"}


class PlainChange:
    """A change whose actions are known beforehand."""

    def __init__(
        self,
        operation: str,
        *,
        actions: Sequence[Action] = (),
        info: Mapping[str, Any] | None = None,
        check: CommitCheck | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        self.operation = operation
        self.parameters = parameters or {}
        self.has_files = any("add" in each for each in actions)
        self._actions = actions
        self._info = info or {}
        self._check = check

    def check(self, version: int, actions: Sequence[Action]) -> None:
        if self._check is not None:
            self._check(version, actions)

    def actions(self, version: int) -> Sequence[Action]:
        return self._actions

    def info(self) -> Mapping[str, Any]:
        return self._info


class Attempt:
    """A change, the id that it is known by, and the versions that it tried."""

    def __init__(self, change: Change, *, commit_id: str, begun_ms: int) -> None:
        self.change = change
        self.commit_id = commit_id
        self.begun_ms = begun_ms
        """By a clock that counts sleep: when the attempt's files began to be written."""
        self.tried_versions: dict[int, Fate] = {}
        self.won_version: int | None = None
        self.known_ms = 0
        self._version = -1
        self._body = b""

    @property
    def open_version(self) -> int | None:
        """The version whose outcome must be settled first, if there is one."""
        return self._version if self.tried_versions.get(self._version) is Fate.OPEN else None

    @property
    def files_may_be_deleted(self) -> bool:
        """Whether nothing of this attempt can be in the table, now or later."""
        return all(fate is Fate.TAKEN for fate in self.tried_versions.values())

    def body(self, version: int, timestamp_ms: int) -> bytes:
        """The bytes for a try at `version`, the same ones for the same version."""
        if version != self._version:
            assert self.open_version is None, "the fate of the version before is open"
            actions = self.change.actions(version)
            ours = {"commitId": self.commit_id, **self.change.info()}
            info = commit_info_action(
                timestamp_ms=timestamp_ms,
                operation=self.change.operation,
                # Each version up to this one was read and inspected.
                read_version=version - 1,
                actions=actions,
                parameters=self.change.parameters,
                ours=ours,
            )
            self._body = encode_actions([info, *actions])
            self._version = version
        return self._body

    def trying(self, version: int, *, known_ms: int) -> bool:
        """From now on `version` may hold this commit; True if it could before already.

        The version did not exist at `known_ms`, as far as is known before the first try.
        """
        before = self.tried_versions.get(version) is Fate.OPEN
        self.tried_versions[version] = Fate.OPEN
        if not before:
            self.known_ms = known_ms
        return before

    def not_written(self, version: int) -> None:
        """The try at `version` certainly left nothing behind."""
        del self.tried_versions[version]

    def won(self, version: int) -> None:
        """The version is this commit's."""
        self.tried_versions[version] = Fate.WON
        self.won_version = version

    def lost(self, version: int) -> None:
        """The version is another writer's."""
        self.tried_versions[version] = Fate.TAKEN

    def is_ours(self, actions: Sequence[Action]) -> bool:
        """Whether a version holds this commit."""
        ours = kafka_ds_info(actions)
        return ours is not None and ours.get("commitId") == self.commit_id

    def inspect(self, version: int, actions: Sequence[Action], now_ms: int) -> None:
        """Look at another writer's version; raises Conflict when it ends the attempt."""
        assert not self.is_ours(actions), "what is ours is not in between"
        if version in self.tried_versions:
            self.lost(version)
        age_ms = vacuumed_age_ms(actions)
        is_old = age_ms is not None and self.begun_ms <= now_ms - age_ms
        if is_old and self.change.has_files:
            raise FilesMayBeGone(
                f"version {version} vacuumed while this commit's files waited", version=version
            )
        self.change.check(version, actions)
