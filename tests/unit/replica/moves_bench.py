"""What several tests use: until_ended, begin_slowly, move, future and others."""

from __future__ import annotations

from broker.log.directories.log_manager import FutureLog
from broker.replica.fetcher.metrics import move_samples
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.loops import until
from tests.unit.replica.moving_bench import MovingBench


async def until_ended(bench: MovingBench) -> None:
    await until(
        lambda: (
            not (
                bench.manager.future_log(TopicPartition("t", 0)) is not None
                or bench.moves.under_way
            )
        )
    )


async def begin_slowly(bench: MovingBench) -> None:
    """A move of twenty records to /b that has copied some of them, and waits."""
    bench.append(20)
    bench.rate = 0
    bench.moves.alter(TopicPartition("t", 0), "/b")
    await until(lambda: future(bench).log.log_end_offset != 0)


async def move(bench: MovingBench, path: str = "/b") -> None:
    bench.moves.alter(TopicPartition("t", 0), path)
    await until_ended(bench)


def future(bench: MovingBench) -> FutureLog:
    found = bench.manager.future_log(TopicPartition("t", 0))
    assert found is not None
    return found


def lags_and_failures(bench: MovingBench) -> list[tuple[object, float]]:
    return [(metric, value) for metric, _, value in move_samples(bench.moves)]
