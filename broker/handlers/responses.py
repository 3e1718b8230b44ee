"""Pure: turns a coordinator's answer, which is there at once or comes later, into a response.

No handler is registered here. The coordinator answers at once or by a future, and refuses by KafkaError either way.
With these functions a handler changes the answer in one place for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kafka_ds.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


def then(answer: Any, finish: Callable[[Any], T]) -> T | Awaitable[T]:
    """`finish` applied to an answer, or to what will be one."""
    if hasattr(answer, "__await__"):  # A tenth of the time of isinstance(…, Awaitable).
        return _later(answer, finish)
    return finish(answer)


async def _later(answer: Awaitable[Any], finish: Callable[[Any], T]) -> T:
    return finish(await answer)


def answered(
    submit: Callable[[], Any], finish: Callable[[Any], T], refuse: Callable[[ErrorCode], T]
) -> T | Awaitable[T]:
    """`finish` applied to what the coordinator answers, `refuse` to its error: at once where that is known."""
    try:
        answer = submit()
    except KafkaError as error:
        return refuse(error.code)
    if hasattr(answer, "__await__"):  # A tenth of the time of isinstance(…, Awaitable).
        return _finished(answer, finish, refuse)
    return finish(answer)


async def _finished(
    answer: Awaitable[Any], finish: Callable[[Any], T], refuse: Callable[[ErrorCode], T]
) -> T:
    try:
        return finish(await answer)
    except KafkaError as error:
        return refuse(error.code)


async def settled(submit: Callable[[], Any]) -> Any:
    """The answer to `submit`, or the KafkaError in its place."""
    try:
        answer = submit()
        return await answer if isinstance(answer, Awaitable) else answer
    except KafkaError as error:
        return error
