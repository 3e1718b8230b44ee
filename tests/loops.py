"""Tests that are coroutines: each runs in an event loop of its own."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn a coroutine function into a plain test; fixtures and parameters stay as they are."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def turns(count: int = 50) -> None:
    """Give the running event loop this many turns, so that everything that needs no more time has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pass_time(seconds: float) -> None:
    """Move the running event loop's time on: timers until then are called, and so is what they lead to."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
    await turns()


async def until(condition: Callable[[], object]) -> None:
    """Give the running event loop turns until the condition holds."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)
