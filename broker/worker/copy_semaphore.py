"""Shell: limits how many threads of the worker encode a copy's files at a time, over all partitions."""

import threading


class CopySemaphore:
    """Admits so many shares, or large copies, at a time."""

    def __init__(self, count: int) -> None:
        assert count >= 1, "nobody's turn would come"
        self.count = count
        self._free = threading.BoundedSemaphore(count)

    def __enter__(self) -> None:
        self._free.acquire()

    def __exit__(self, *_: object) -> None:
        self._free.release()
