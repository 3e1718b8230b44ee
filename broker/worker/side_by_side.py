"""Shell: work of several partitions or tables that waits for the store, in threads at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

EachOf: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""As `map`: all are done when the answers have been iterated over, which are in the order of the arguments."""


@contextmanager
def side_by_side(threads: int, name: str) -> Iterator[EachOf]:
    """Do something for each of several, so many at a time. An exception ends the iteration."""
    if threads <= 1:
        yield map
        return
    # Threads start when they are needed, with the priority of this one.
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        yield pool.map
