"""Shell: the console's own threads, one for each kind of work, so that readers do not take the broker's.

A browser that hangs up takes back what has not begun; what has begun keeps its thread to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class OneThread:
    """One thread, made when it is first needed."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"console-{name}")

    async def run(self, work: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        """What `work` comes to; only one is done at a time."""
        return await asyncio.wrap_future(self._executor.submit(work, *args, **kwargs))

    def stop(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
