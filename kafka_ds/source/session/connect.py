"""Shell: what a session of Spark Connect lacks, and what its client can do about it.

By default the server keeps the plans of its last queries. A DataFrame would then show the rows of its first query in
all later ones, while elsewhere each query looks again. So `register` turns that off, and warns of the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("kafka_ds.source")
PLAN_CACHE: Final = "spark.connect.session.planCache.enabled"
LACKS: Final = (
    "Spark Connect: filters and columns are not pushed down (options 'where' and 'columns' are), and a temporary view "
    "shows the rows of its first query: load() or CREATE OR REPLACE TEMPORARY VIEW reads newer ones"
)


def is_connect(spark: SparkSession) -> bool:
    """Whether this is the client of a Spark Connect server, which has no session of Java's."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def prepare(spark: SparkSession) -> None:
    """Let each query of a DataFrame look again, and say what is missing, once for a session."""
    chosen = spark.conf.get(PLAN_CACHE, None)
    if chosen is None:
        set_unless_defining(spark, PLAN_CACHE, "false")
        LOGGER.warning(LACKS)
    elif chosen.lower() == "true":
        LOGGER.warning(
            "%s; with %s=true so does a DataFrame, which only a new load() replaces",
            LACKS,
            PLAN_CACHE,
        )


def set_unless_defining(spark: SparkSession, name: str, value: str) -> bool:
    """Set it, unless a declarative pipeline is being defined, which allows no setting; whether it is set."""
    try:
        spark.conf.set(name, value)
    except PySparkException as problem:
        if "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE" not in str(problem):
            raise
        return False
    return True
