"""Shell: how many tasks a session can run at once, as far as its settings tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def slots_of(spark: SparkSession) -> int | None:
    """The slots of a session's executors; None if they are not known (Spark Connect, executors without a bound).

    Executors may come later than the session, so the settings count, and not what is there. Too high a number does no
    harm here, too low a one would leave executors idle.
    """
    if getattr(spark, "_jvm", None) is None:
        return None
    context = spark.sparkContext
    master = context.master or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        return context.defaultParallelism
    conf = context.getConf()
    is_dynamic = str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
    executors = conf.get(
        "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    )
    cores = conf.get("spark.executor.cores")
    if executors is None or cores is None:
        return None
    return max(context.defaultParallelism, int(executors) * int(cores))
