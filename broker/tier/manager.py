"""Shell: the broker's side of the tier — what is copied when, what is read cold, what may be deleted.

Rules of this file: it decides nothing that `policy` can decide and holds no lake data; everything that
needs Arrow is asked of the worker process. A log learns `highest_offset_in_remote_storage` only after
COPY_SEGMENT_FINISHED is durable (KIP-405), and its local segments go only `lake.local.grace.ms` later.
All methods are called in the event loop; those that are not `async` never wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.seams import Clock
from broker.tier.settings import TierSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRead:
    """What the lake holds from an offset on: whole record batches, in offset order.

    `next_offset` is the first offset that this read does not account for: a batch (perhaps empty)
    reaches up to it, so that a consumer's position gets over offsets whose records are gone.
    """

    chunks: list[bytes] = field(default_factory=list)
    next_offset: int
    tiered_end_offset: int
    log_start_offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(map(len, self.chunks))


class TierManager:
    """Runs the tier of one broker: copies, cold reads, local deletion, rows of cluster events."""

    def __init__(self, settings: TierSettings, clock: Clock) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Begin to work; the worker process is started only when it is first needed."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End copies in flight cleanly if they end soon, stop the worker, fail what waits."""
        raise NotImplementedError

    # -- what the broker tells --------------------------------------------------------------

    def partition_opened(
        self, log: Any, *, leader_epoch: int, last_stable_offset: Callable[[], int]
    ) -> None:
        """This broker leads the partition of `log` (with remote.storage.enable) from now on.

        `log` knows its topic, topic_id, partition; `last_stable_offset` is asked before each copy:
        nothing at or above it is copied. Called again with a higher epoch after re-election.
        """
        raise NotImplementedError

    def partition_closed(self, topic_id: bytes, partition: int) -> None:
        """This broker leads the partition no more: copies of it are not finished here."""
        raise NotImplementedError

    def segment_rolled(self, log: Any) -> None:
        """A segment of this log was closed: there may be a range to copy."""
        raise NotImplementedError

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        """The topic is deleted: all its rows leave the table, durably, in the background."""
        raise NotImplementedError

    def cluster_events(self, version: int, events: Sequence[dict[str, Any]]) -> None:
        """`__cluster_metadata` reached `version`: its events become rows within about a second."""
        raise NotImplementedError

    # -- what the broker asks ---------------------------------------------------------------

    async def read(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        isolation_level: int = 0,
    ) -> TierRead:
        """Read batches from `offset` on, at least one and then at most `max_bytes`, never beyond the
        tiered end. isolation_level as in Fetch: 0 read_uncommitted, 1 read_committed.

        Raises KafkaError: OFFSET_OUT_OF_RANGE (the lake does not hold the offset), KAFKA_STORAGE_ERROR
        (retriable: store or worker away, queue full).
        """
        raise NotImplementedError

    async def offset_for_timestamp(
        self, topic: str, topic_id: bytes, partition: int, timestamp_ms: int
    ) -> tuple[int, int, int] | None:
        """First tiered record at or after a time: (timestamp_ms, offset, leader_epoch), or None."""
        raise NotImplementedError

    def tiered_end(self, topic_id: bytes, partition: int) -> int | None:
        """Last offset that is FINISHED in the lake (-1: nothing yet), or None while not known."""
        raise NotImplementedError

    async def known_tiered_end(self, topic: str, topic_id: bytes, partition: int) -> int:
        """As `tiered_end`, asking the lake when it is not known yet (ListOffsets -5, -6)."""
        raise NotImplementedError
