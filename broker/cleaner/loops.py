"""Shell: compiles the loops of compaction and caches them beside those of `kafka_ds.records.kernel`.

Only the child process may import this module, as it imports numba. numba checks the modification time of a loop's own
file, but not of files whose functions it inlines, so the cache folder's name contains a checksum of all sources.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kafka_ds.records import compaction, decoder, encoder, hashes, kernel
from kafka_ds.records.arrays import fixed, read_only

__all__ = ["CleanerLoops", "loops"]


class CleanerLoops(NamedTuple):
    """The compiled functions of `kafka_ds.records.compaction`."""

    enter_keys: Callable[..., tuple[int, bool]]
    move_keys: Callable[..., None]
    compact: Callable[..., int]
    index_entries: Callable[..., tuple[int, int]]


@lru_cache(maxsize=1)
def loops() -> CleanerLoops:
    """Compile the loops (some seconds) or load them from the cache."""
    data, longs = read_only(None, np.uint8), read_only(None, np.int64)
    batches = fixed(np.empty((0, decoder.BATCH_FIELDS), np.int64))
    secret = np.uint64(0), np.uint64(0)
    table = np.zeros((1, 3), np.uint64)
    out, numbers, rows = np.empty(0, np.uint8), np.empty(0, np.int64), np.empty((0, 1), np.int64)
    with kernel.cache_folder() as private:
        folder = private and _folder_of_sources(private)
        return CleanerLoops(
            enter_keys=kernel.compiled(
                folder,
                compaction.enter_keys,
                (data, batches, data, 0, 0, secret, table, numbers),
            ),
            compact=kernel.compiled(
                folder,
                compaction.compact,
                (data, batches, True, data, longs, secret, table, rows, out, rows, numbers),
            ),
            move_keys=kernel.compiled(folder, compaction.move_keys, (table, table)),
            index_entries=kernel.compiled(
                folder, compaction.index_entries, (longs, longs, longs, 0, numbers, rows, rows)
            ),
        )


def _folder_of_sources(private: str) -> str:
    digest = hashlib.sha256()
    for module in (compaction, decoder, encoder, hashes):
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    folder = os.path.join(private, f"compaction-{digest.hexdigest()[:16]}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder
