"""Shell: what a Python process of Spark holds for good is kept out of the collections between its jobs.

Rules of this file: PySpark's daemon calls ``gc.collect()`` each time a process of its has served a task or a plan, and
the next one waits for that. It walks the modules of Arrow, numba and pandas each time: 10 to 50 ms, more than most
small tasks take. What lives when `settle` is called lives as long as the process.
"""

from __future__ import annotations

import gc
from typing import Final

# Objects that a collection may walk (a few milliseconds), and how often more than those are put aside: what is put
# aside and goes in a cycle later is never freed.
UNSETTLED_MAX: Final = 10_000
SETTLED_TIMES_MAX: Final = 4


class Settling:
    """How often a process has put aside what it holds."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        """Put aside what this process holds, if it is much; to be called where a job is over.

        The first jobs load most of it while they run.
        """
        if self.times < SETTLED_TIMES_MAX and len(gc.get_objects()) > UNSETTLED_MAX:
            self.times += 1
            gc.collect()
            gc.freeze()


settle: Final = Settling()
