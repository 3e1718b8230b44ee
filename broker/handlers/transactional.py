"""Pure: what the handlers of transactions have in common: how an answer is waited for, what old clients are told.

Rules of this file:
- No handler is registered here. The coordinator answers at once or by a future, and refuses by KafkaError either way.
- PRODUCER_FENCED (KIP-588) is known to newer versions only; older ones hear INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from broker.transactions.values import TopicPartition
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages.transactions import AddPartitionsToTxnTopic

T = TypeVar("T")


def answered(
    ask: Callable[[], Any], finish: Callable[[Any], T], refuse: Callable[[ErrorCode], T]
) -> T | Awaitable[T]:
    """`finish` applied to what the coordinator answers, `refuse` to its error: at once where that is known."""
    try:
        answer = ask()
    except KafkaError as error:
        return refuse(error.code)
    if isinstance(answer, Awaitable):
        return _later(answer, finish, refuse)
    return finish(answer)


async def _later(
    answer: Awaitable[Any], finish: Callable[[Any], T], refuse: Callable[[ErrorCode], T]
) -> T:
    try:
        return finish(await answer)
    except KafkaError as error:
        return refuse(error.code)


def told(code: ErrorCode, *, knows_fencing: bool) -> ErrorCode:
    """The error in a form that the client's version knows."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_fencing:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def partitions_of(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    """All partitions that a request names."""
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
