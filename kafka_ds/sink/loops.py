"""Shell: the partitioner's loops, compiled on first use and cached where `kafka_ds.records.kernel` caches its own.

Rules of this file: those of `kernel`: each loop has one declared signature, and numba is imported with this module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kafka_ds.records import kernel, partitioner
from kafka_ds.records.arrays import read_only
from kafka_ds.records.encoder import NO_BINARY

__all__ = ["Loops", "loops"]


class Loops(NamedTuple):
    """`kafka_ds.records.partitioner`, compiled."""

    assign: Callable[..., None]
    order: Callable[..., None]


@lru_cache(maxsize=1)
def loops() -> Loops:
    """Compile them (a second), or load what was compiled before."""
    ints, numbers = read_only(None, np.int32), np.zeros(2, np.int64)
    out = np.empty(0, np.int32)
    with kernel.cache_folder() as folder:
        return Loops(
            assign=kernel.compiled(
                folder, partitioner.assign, (ints, NO_BINARY, NO_BINARY, True, 0, 1, numbers, out)
            ),
            order=kernel.compiled(folder, partitioner.order, (ints, numbers, numbers)),
        )
