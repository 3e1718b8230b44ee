"""Tests that are coroutines: each runs in an event loop of its own."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a plain test of a coroutine function; fixtures and parameters stay as they are."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def turns(count: int = 50) -> None:
    """Give the running event loop so many turns: what can happen without time going on has happened then."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pass_time(seconds: float) -> None:
    """Let time go on in the running event loop: what was to be called until then is called, and what follows of it."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
    await turns()
