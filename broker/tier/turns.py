"""Shell: how many threads of the worker may turn a copy's bytes into files at a time.

Rules of this file: whoever copies asks for a turn, of whichever partition; what it is good for is not known here.
"""

import threading


class Turns:
    """How many shares may be converted at a time, of all partitions together."""

    def __init__(self, count: int) -> None:
        assert count >= 1, "nobody's turn would come"
        self.count = count
        self._free = threading.BoundedSemaphore(count)

    def __enter__(self) -> None:
        self._free.acquire()

    def __exit__(self, *_: object) -> None:
        self._free.release()
