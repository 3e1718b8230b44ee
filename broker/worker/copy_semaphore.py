"""Shell: limits how many threads of the worker convert a copy's bytes into files at a time.

Every copying thread takes a turn, for any partition; what a turn is used for is not known here.
"""

import threading


class CopySemaphore:
    """So many shares, or large copies, at a time, over all partitions."""

    def __init__(self, count: int) -> None:
        assert count >= 1, "nobody's turn would come"
        self.count = count
        self._free = threading.BoundedSemaphore(count)

    def __enter__(self) -> None:
        self._free.acquire()

    def __exit__(self, *_: object) -> None:
        self._free.release()
