"""Shell: the Python process of a stream's source ends with the driver that started it.

Rules of this file: Spark's process notices that its driver is gone when it reads the next question: that is minutes
later, where brokers do not answer. So a thread looks whose child the process is. Spark's other Python processes end
with the daemon that forks them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import lru_cache
from typing import Final

__all__ = ["RUNNER", "end_with_driver"]

# What PySpark (4.0 to 4.2) runs as the main module of that process.
RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
LOOK_EVERY_S: Final = 1.0


@lru_cache(maxsize=1)
def end_with_driver() -> None:
    """Have this process end when the one that started it does, if it is Spark's for a stream's source."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    # There is nobody to tell, and nothing to write down: positions are in Spark's checkpoint.
    os._exit(1)
