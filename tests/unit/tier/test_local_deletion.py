"""What becomes of local segments whose records are in the lake."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.crash_points import CrashPoints
from broker.replica.fetcher.tiered_ends import TieredEnds
from broker.tier.copying.copies import CopyLoop
from broker.tier.copying.partitions import Key, Led
from broker.tier.copying.policy import CopyState, Phase
from broker.tier.expiry.local_deletion import LocalDeletion
from broker.tier.messages import CopyTopic
from broker.tier.metrics import TierMetrics
from broker.tier.quota import COPY_TIMES, RemoteQuota
from broker.tier.settings import UNBOUNDED, TierSettings
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.types import uuid_text
from tests.fakes.memory_disk import ManualClock

TOPIC_ID = bytes(range(16))
ERRORS = [OSError("full"), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)]


@pytest.mark.parametrize("error", ERRORS)
def test_a_disk_that_deletes_nothing_holds_up_no_other_partition(error: Exception) -> None:
    """The copy is told of both partitions; the first one's log fails when it is to delete what was copied."""
    deleted: list[int] = []

    def led_partition(partition: int) -> Led:
        def delete(now_ms: int) -> None:
            if partition == 0:
                raise error
            deleted.append(partition)

        log: Any = SimpleNamespace(
            name=f"t-{partition}",
            topic="t",
            topic_id=TOPIC_ID,
            partition=partition,
            highest_offset_in_remote_storage=-1,
            delete_local_segments=delete,
        )
        led = Led(log=log, leader_epoch=0, last_stable_offset=lambda: 10)
        led.state.learnt(-1, 0)
        return led

    class Worker:
        async def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
            outcome = {"topic_id": uuid_text(TOPIC_ID), "outcome": "finished", "tiered_end": 9}
            both = [{**outcome, "partition": at} for at in range(2)]
            return {"partitions": both, "milliseconds": 1, "complaints": 0}, b""

    async def copy() -> list[Phase]:
        both = [led_partition(at) for at in range(2)]
        clock, worker = ManualClock(), Worker()
        asked: Any = worker
        led: dict[Key, Led] = {each.key: each for each in both}
        local = LocalDeletion(clock, led, grace_ms=0)
        quota = RemoteQuota(lambda: UNBOUNDED, COPY_TIMES, windows=11, window_seconds=1)
        loop = CopyLoop(
            TierSettings(), clock, asked, TierMetrics(), CrashPoints(), local.advanced, quota
        )
        loop.led = led
        await loop._copy([CopyTopic(topic="t", topic_id=uuid_text(TOPIC_ID), ranges=[])], both)
        local.stop()
        return [each.state.phase for each in both]

    assert asyncio.run(copy()) == [Phase.READY, Phase.READY]
    assert deleted == [1]


@pytest.mark.parametrize("error", ERRORS)
def test_nor_does_it_on_a_follower(error: Exception) -> None:
    """Each look goes through all followed logs, the failing one first."""
    followed = [Mock(name=f"t-{at}", is_lost=False) for at in range(2)]
    for each in followed:
        each.follower.leader = -1
        each.log.highest_offset_in_remote_storage = -1
    followed[0].log.delete_local_segments.side_effect = error
    around: Any = Mock(clock=ManualClock())
    around.settings.lake_local_grace_ms = 0
    ends = TieredEnds(around, lambda: followed)
    for each in followed:
        ends._known[each] = CopyState()
        ends._known[each].learnt(9, 0)
    asyncio.run(ends.look())
    ends.stop()
    assert [each.log.highest_offset_in_remote_storage for each in followed] == [9, 9]
    followed[1].log.delete_local_segments.assert_called_once()
