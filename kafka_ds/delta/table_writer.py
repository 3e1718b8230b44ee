"""Shell: a Delta table as one writer changes it: an attempt, and settling one whose fate is unknown.

At most one attempt is unsettled. Nothing else is committed before its fate is known: the same bytes are tried again,
and every version that others made meanwhile is inspected. One thread at a time. Four commits go to the log directly, as
no later one depends on their fate: a table's first version, a merge of event files, VACUUM's announcement, and the
recovery of a topic's table, which each begin with what they then find in it.
"""

from __future__ import annotations

import logging

from kafka_ds.delta.commit import Attempt, Change, CommitError, Conflict, FateUnknown
from kafka_ds.delta.log import DeltaLog

log = logging.getLogger(__name__)


class TableWriter:
    """Changes a table, one attempt after the other."""

    def __init__(self, log: DeltaLog) -> None:
        self.log = log
        self._unsettled: Attempt | None = None

    def begin(self, change: Change, *, begun_ms: int | None = None) -> Attempt:
        """A fresh attempt; `begun_ms` is when its files were begun, if that was before now."""
        return self.log.begin(change, begun_ms=begun_ms)

    def commit(self, attempt: Attempt, *, read_version: int) -> int:
        """Commit what was decided on the table as of `read_version`, and after `settle`; the version won.

        Raises Conflict where a version in between ends the attempt, CommitError where no end was reached. After
        FateUnknown the same attempt may be committed again.
        """
        assert self._unsettled in (None, attempt), "settled before it was decided"
        # Up to the last version that it tried it has inspected all.
        inspected = max(attempt.tried_versions, default=read_version)
        is_again, self._unsettled = self._unsettled is attempt, None
        try:
            return self.log.commit(attempt, read_version=inspected)
        except FateUnknown:
            self._unsettled = attempt
            raise
        except (Conflict, CommitError):
            raise
        except BaseException as error:
            # Whatever it was, what a version may hold is found out first.
            if is_again or attempt.open_version is not None:
                self._unsettled = attempt
            if is_again and isinstance(error, OSError):
                raise FateUnknown(f"{self.log.table}: {error}", attempt) from error
            raise

    def settle(self) -> Attempt | None:
        """Find out what became of the attempt whose fate is unknown: gives it, won or not; None if there is none.

        Raises FateUnknown while it stays unknown.
        """
        attempt = self._unsettled
        if attempt is None:
            return None
        try:
            self.commit(attempt, read_version=-1)
        except FateUnknown:
            raise
        except (Conflict, CommitError) as error:
            log.warning(
                "%s: a commit whose answer was lost is not in the table: %s", self.log.table, error
            )
        return attempt

    def abandon(self) -> None:
        """Leave the attempt whose fate is unknown, which has no files: who reads the table next sees it or not."""
        self._unsettled = None
