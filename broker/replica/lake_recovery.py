"""Shell: what the lake knows of a log that is less than it was: asked until it can say.

Rules of this file:
- The lake is a replica that is never unclean: a log that ends before the lake's end goes on behind it, and no offset
  is used twice.
- A leader that waits for the lake takes and gives nothing meanwhile; others go on. Who cannot be told is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from broker.log.ending import UNKNOWN, Ending
from broker.replica.followed import FollowedPartition
from broker.replica.hosted import HostedPartition
from kafka_ds.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.tier.manager import TierManager

_LOGGER = logging.getLogger(__name__)

RECOVERY_RETRY_SECONDS = 1.0

DecideRecovered = Callable[[Sequence[tuple[bytes, int]]], Awaitable[None]]


class LakeRecovery:
    """The partitions of a broker that still have to hear of the lake's end."""

    def __init__(
        self,
        led: Iterable[HostedPartition],
        *,
        tier: Callable[[], TierManager | None],
        decide_recovered: DecideRecovered,
        elected: Callable[[HostedPartition], None],
    ) -> None:
        """`led` are all partitions led here at the moment; `elected` begins the epoch of one that may begin."""
        self._led = led
        self._tier = tier
        self._decide_recovered = decide_recovered
        self._elected = elected
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def soon(self) -> None:
        """There is a partition that waits for the lake."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._recover())

    def stop(self) -> None:
        """Ask no more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _recover(self) -> None:
        """Compare each recovering partition's end with the lake's, until none is left."""
        try:
            while waiting := [p for p in self._led if p.leader.is_recovering]:
                known = [partition for partition in waiting if await self._meet_lake(partition)]
                for partition in known:
                    if partition.leader.found_what_was_lost() and not partition.is_lost:
                        self._elected(partition)
                try:
                    await self._decide_recovered([(p.topic_id, p.index) for p in known])
                except KafkaError as error:
                    _LOGGER.warning("cannot end the recovery yet: %s", error)
                    known = []
                if len(known) < len(waiting):
                    await asyncio.sleep(RECOVERY_RETRY_SECONDS)
        finally:
            self._task = None

    async def _meet_lake(self, partition: HostedPartition) -> bool:
        """Let the log go on behind the lake's end; False while the lake cannot say where that is."""
        log, tier = partition.log, self._tier()
        if tier is None or not log.config.remote_storage_enable:
            return True
        try:
            where = (partition.topic, partition.topic_id, partition.index)
            end, ended = await tier.known_tiered_end(*where), UNKNOWN
            if end >= log.log_end_offset:
                ended = await tier.ending(*where, end)
        except KafkaError as error:
            _LOGGER.warning("%s-%d waits for the lake: %s", log.topic, log.partition, error)
            return False
        except Exception:
            # A mistake of ours over there must not leave partitions without a leader here.
            _LOGGER.exception("%s-%d waits for the lake", log.topic, log.partition)
            return False
        if partition.is_lost:
            return False
        if end >= log.log_end_offset:
            _LOGGER.warning(
                "%s-%d ends at %d, the lake at %d: going on behind the lake",
                log.topic, log.partition, log.log_end_offset, end,
            )  # fmt: skip
            log.restart_at(end + 1, ended)
            partition.leader.restarted(end + 1)
            log.update_high_watermark(end + 1)
        return True

    async def end_of_lake(self, partition: FollowedPartition) -> tuple[int, Ending]:
        """The first offset that is not in the lake, and what it keeps besides the records up to there.

        For a follower whose leader has what comes next in the lake alone (KIP-405; KIP-1023 begins there too).

        Raises:
            KafkaError: the lake cannot say.
        """
        tier = self._tier()
        if tier is None or not partition.log.config.remote_storage_enable:
            raise KafkaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"{partition.log.name}: no lake is known here",
            )
        where = (partition.topic, partition.topic_id, partition.index)
        end = await tier.known_tiered_end(*where)
        return end + 1, await tier.ending(*where, end)
