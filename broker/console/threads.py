"""Shell: the console's own threads, one for each kind of work, so that it does not use the broker's.

A browser that disconnects cancels work that has not started; started work runs to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SingleThread:
    """One thread, started on demand."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"console-{name}")

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the thread, one call at a time."""
        return await asyncio.wrap_future(self._executor.submit(work, *args, **kwargs))

    def stop(self) -> None:
        """Start nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
