"""Pure: one partition as its follower sees it: its fetch offset, its leader, and what each response means.

A follower fetches at its log's end and nowhere else: its log is a prefix of what its leader has had. A response counts
only for the fetch offset and leader epoch of the request. The high watermark is the least of the leader's and the own
log end. FENCED_LEADER_EPOCH for the newest epoch known here ends fetching until the metadata change;
UNKNOWN_LEADER_EPOCH is retried soon, and then twice as late each time, up to replica.fetch.backoff.ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from broker.replica.follower.truncation import NO_EPOCH
from kafka_ds.protocol.errors import ErrorCode


class FetchState(Enum):
    """What a follower does."""

    TRUNCATING = "truncating"
    """It has to find where its log diverges from the leader's."""
    FETCHING = "fetching"
    FAILED = "failed"
    """It waits for new metadata."""


class FollowerAction(Enum):
    """What a leader's response asks for."""

    APPEND = "append"
    TRUNCATE = "truncate"
    OUT_OF_RANGE = "out of range"
    TIERED = "tiered"
    """The leader has the offset only in the lake."""
    FAIL = "fail"
    RETRY = "retry"


class FetchPosition(NamedTuple):
    """Where a follower fetches; answers for another position are ignored."""

    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int


# The answer of a broker that does not know yet that it leads, and the first retry.
_NOT_LEADING_YET = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
FIRST_RETRY_MS = 10

_ACTIONS: Mapping[int, FollowerAction] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: FollowerAction.OUT_OF_RANGE,
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: FollowerAction.TIERED,
    ErrorCode.FENCED_LEADER_EPOCH: FollowerAction.FAIL,
}


class FollowerState:
    """A partition that is followed, from one leader epoch to the next."""

    __slots__ = (
        "_not_leader_retries",
        "_fetch_position",
        "due_ms",
        "fetch_offset",
        "high_watermark",
        "lag",
        "last_fetched_epoch",
        "leader",
        "leader_epoch",
        "partition_epoch",
        "state",
    )

    def __init__(self, *, high_watermark: int) -> None:
        """The partition begins with no leader; `high_watermark` is the checkpoint's, within the log."""
        self.state = FetchState.FAILED
        self.leader = -1
        self.leader_epoch = self.partition_epoch = -1
        self.fetch_offset = 0
        self.last_fetched_epoch = NO_EPOCH
        self._fetch_position = FetchPosition(0, -1, NO_EPOCH)
        self.high_watermark = high_watermark
        self.lag: int | None = None
        self.due_ms = 0
        # How often in a row the leader did not know that it leads.
        self._not_leader_retries = 0

    def follow(
        self,
        leader: int,
        leader_epoch: int,
        *,
        log_end_offset: int,
        last_epoch: int,
    ) -> None:
        """Follow this leader from now on, or retry the same one after new metadata.

        With an epoch to compare the first fetch finds out whether the log diverges (KIP-595). Without one the log is
        truncated first, to what is known to be committed.
        """
        assert leader_epoch >= self.leader_epoch, "leader epochs only grow"
        self.leader, self.leader_epoch = leader, leader_epoch
        self.fetch_offset, self.last_fetched_epoch = log_end_offset, last_epoch
        self.state = FetchState.TRUNCATING if last_epoch == NO_EPOCH else FetchState.FETCHING
        self.lag = None
        self.due_ms = 0
        self._not_leader_retries = 0

    def update_partition_epoch(self, partition_epoch: int) -> bool:
        """Metadata of this epoch came; whether they are newer than those before."""
        is_newer = partition_epoch > self.partition_epoch
        self.partition_epoch = max(partition_epoch, self.partition_epoch)
        return is_newer

    def must_begin(self, leader: int, leader_epoch: int) -> bool:
        """Whether metadata with this leader are a reason to start over: they name another, or it had failed."""
        is_same = (leader, leader_epoch) == (self.leader, self.leader_epoch)
        return self.state is FetchState.FAILED or not is_same

    def leader_lost(self, leader_epoch: int) -> None:
        """The partition has no leader."""
        self.leader, self.leader_epoch = -1, leader_epoch
        self.state = FetchState.FAILED

    def truncate_before_fetching(self) -> None:
        """The leader ignores epochs in a fetch: compare epochs, and truncate the log, before the first fetch."""
        if self.state is FetchState.FETCHING:
            self.state = FetchState.TRUNCATING

    # -- fetching -------------------------------------------------------------------------------

    def is_due(self, now_ms: int) -> bool:
        """Whether it may be requested: it has not failed and its back-off is over."""
        return self.state is not FetchState.FAILED and self.due_ms <= now_ms

    def is_ready(self, now_ms: int) -> bool:
        """Whether it may be fetched."""
        return self.state is FetchState.FETCHING and self.due_ms <= now_ms

    @property
    def fetch_position(self) -> FetchPosition:
        """Where to fetch next; the same object until the state changes."""
        known = self._fetch_position
        if (
            known.fetch_offset != self.fetch_offset
            or known.leader_epoch != self.leader_epoch
            or known.last_fetched_epoch != self.last_fetched_epoch
        ):
            self._fetch_position = known = FetchPosition(
                self.fetch_offset, self.leader_epoch, self.last_fetched_epoch
            )
        return known

    def is_current(self, position: FetchPosition) -> bool:
        """Whether an answer to a fetch at this position is still relevant."""
        return (
            self.state is not FetchState.FAILED
            and position.fetch_offset == self.fetch_offset
            and position.leader_epoch == self.leader_epoch
        )

    # -- outcomes -----------------------------------------------------------------------------

    def action_for(self, error_code: int, *, is_diverging: bool) -> FollowerAction:
        """What an answer to the current fetch asks for."""
        if error_code == ErrorCode.NONE:
            return FollowerAction.TRUNCATE if is_diverging else FollowerAction.APPEND
        return _ACTIONS.get(error_code, FollowerAction.RETRY)

    def appended(self, log_end_offset: int, last_epoch: int, leader_high_watermark: int) -> bool:
        """A response has been appended, up to this end; whether the high watermark has moved."""
        assert log_end_offset >= self.fetch_offset, (
            "a follower's log is truncated by `truncated` alone"
        )
        self._not_leader_retries = 0
        self.fetch_offset = log_end_offset
        self.last_fetched_epoch = last_epoch
        self.lag = max(0, leader_high_watermark - log_end_offset)
        committed = min(leader_high_watermark, log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def truncated(self, log_end_offset: int, last_epoch: int, *, is_complete: bool = True) -> None:
        """The log was truncated or restarted, and ends here now; unless complete, the leader is asked again."""
        self.fetch_offset = log_end_offset
        self.last_fetched_epoch = last_epoch
        self.high_watermark = min(self.high_watermark, log_end_offset)
        self.state = FetchState.FETCHING if is_complete else FetchState.TRUNCATING

    def committed_up_to(self, offset: int) -> None:
        """Records below this offset are committed, whatever the leader has answered."""
        self.high_watermark = max(self.high_watermark, offset)

    def delay(self, until_ms: int) -> None:
        """Do not fetch before this time."""
        self.due_ms = max(self.due_ms, until_ms)

    def backoff_ms(self, error_code: int, longest_ms: int) -> int:
        """How long to wait after a retriable error code."""
        if error_code not in _NOT_LEADING_YET:
            return longest_ms
        wait_ms = min(FIRST_RETRY_MS << self._not_leader_retries, longest_ms)
        if wait_ms < longest_ms:
            self._not_leader_retries += 1
        return wait_ms

    def retry(self) -> None:
        """End the back-off: its reason is gone."""
        self.due_ms = 0

    def fail(self) -> None:
        """Fetch no more under this leader epoch."""
        self.state = FetchState.FAILED

    @property
    def is_caught_up(self) -> bool:
        """Whether it is known to hold everything that is committed."""
        return self.lag == 0
