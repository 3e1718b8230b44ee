"""Shell: a Spark session that reads and writes Delta and knows the format "kafka_ds".

Rules of this file: settings live in spark-defaults.conf beside it, so that spark-submit and spark-sql can use the same
ones; Delta's jars come from the cache of `spark_conf.jars`, so that starting a session needs no network.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_conf import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = Path(__file__).parent / "spark-defaults.conf"


def defaults() -> dict[str, str]:
    """The settings of spark-defaults.conf."""
    lines = (line.split("#", 1)[0].strip() for line in DEFAULTS.read_text().splitlines())
    words = (line.split(None, 1) for line in lines if line)
    return {name: value for name, value in words}


def session(
    app_name: str,
    *,
    master: str = "local[*]",
    extra_jars: str = "",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session named ``app_name``; ``settings`` win over those of spark-defaults.conf.

    ``extra_jars`` is a comma-separated list of jars beside Delta's.

    Raises:
        JarsUnavailable: Delta's jars are not in the cache and cannot be fetched, or there is no Java.
    """
    from pyspark.sql import SparkSession

    delta = sorted(str(path) for path in jars.fetch("delta").glob("*.jar"))
    java = Path(jars.java_command()).resolve().parent.parent
    # Spark's launcher looks here; the version that we found is the version that it shall use.
    os.environ.setdefault("JAVA_HOME", str(java))
    # The data source runs in Python workers: they need this interpreter's packages, not those of the first python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    wanted = {**defaults(), **(settings or {})}
    wanted["spark.jars"] = ",".join([*delta, *filter(None, [extra_jars])])
    for name, value in wanted.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
