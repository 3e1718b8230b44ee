"""Shell: how many tasks a session can run at once, by its settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With how many threads, and after them how many failures a task may have.
_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,.*)?\])?")


def slots_of(spark: SparkSession) -> int | None:
    """The slots of a session's executors; None if they are not known (Spark Connect, executors without a bound).

    Executors may come later than the session, so the settings count, and not what is there. Too high a number does no
    harm here, too low a one would leave executors idle.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    context = spark.sparkContext
    if (local := _LOCAL.fullmatch(context.master or "")) is not None:
        # spark.default.parallelism, if it is set, is less than there are threads, or more.
        return max(context.defaultParallelism, _threads(jvm, local[1] or "1"))
    conf = context.getConf()
    is_dynamic = str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
    executors = conf.get(
        "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    )
    cores = conf.get("spark.executor.cores")
    if executors is None or cores is None:
        return None
    return max(context.defaultParallelism, int(executors) * int(cores))


def _threads(jvm: Any, wanted: str) -> int:
    if wanted != "*":
        return int(wanted)
    processors: int = jvm.java.lang.Runtime.getRuntime().availableProcessors()
    return processors
