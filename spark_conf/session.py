"""Shell: a Spark session with Delta and the format "kafka_ds".

Its settings are those of spark-defaults.conf, which spark-submit and spark-sql can use as well; the caller's win. The
jars of Delta, and of S3A if the lake is on S3, come from the cache of `spark_conf.jars`, so starting a session needs no
network. Python workers use the caller's interpreter, which has this package.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kafka_ds.delta.store.store import AZURE_SCHEMES, GCS_SCHEMES
from spark_conf import home, jars, s3a
from spark_conf.java import java_home
from spark_conf.system_views import system_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger(__name__)
DEFAULTS = Path(__file__).parent / "spark-defaults.conf"
# For sessions whose Python functions are all ours: an error is its message. A user's function needs file and line.
NO_TRACEBACK: Final = {"spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true"}
LOGGING = Path(__file__).resolve().parent / "log4j2.properties"


def defaults() -> dict[str, str]:
    """The settings of spark-defaults.conf."""
    lines = (line.split("#", 1)[0].strip() for line in DEFAULTS.read_text().splitlines())
    words = (line.split(None, 1) for line in lines if line)
    return {name: value.strip() for name, value in words}


def session(
    app_name: str,
    *,
    master: str = "local[*]",
    lake: str | os.PathLike[str] | None = None,
    extra_jars: str = "",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session named ``app_name`` with Delta, in which ``format("kafka_ds")`` is registered.

    ``settings`` win over those of spark-defaults.conf. ``lake`` is a folder of tables or an address on S3: with it the
    session has the ``system_views``, and Spark's own readers find tables on S3. ``extra_jars`` is a comma-separated
    list.

    Raises:
        JavaUnusable: there is no Java that Spark can run on.
        JarsUnavailable: the jars are not in the cache and cannot be fetched.
    """
    from pyspark.sql import SparkSession

    import kafka_ds

    java = java_home()
    on_s3 = s3a.is_on_s3(lake)
    sets = ["delta", s3a.JARS] if on_s3 else ["delta"]
    paths = [str(path) for name in sets for path in sorted(jars.fetch(name).glob("*.jar"))]
    # Spark's launcher uses JAVA_HOME: it must be the Java whose version was checked.
    os.environ.setdefault("JAVA_HOME", str(java))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name).master(master)
    quiet = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"}
    s3 = s3a.settings(os.environ) if on_s3 else {}
    wanted = {**defaults(), **quiet, **s3, **(settings or {})}
    wanted["spark.jars"] = ",".join([*paths, *filter(None, [extra_jars])])
    for name, value in wanted.items():
        builder = builder.config(name, value)
    with home.launching(master, wanted):
        spark = builder.getOrCreate()
    kafka_ds.register(spark)
    if lake is not None and _is_known(spark, lake):
        system_views(spark, lake)
    return spark


def _is_known(spark: SparkSession, lake: str | os.PathLike[str]) -> bool:
    """Whether Spark's own readers find a lake; for those of Google and Azure the caller brings the jars."""
    from py4j.protocol import Py4JJavaError

    scheme = urlsplit(os.fspath(lake)).scheme
    if scheme not in (*GCS_SCHEMES, *AZURE_SCHEMES):
        return True
    jvm = spark._jvm
    assert jvm is not None, "a session of ours has a JVM"
    file_systems = jvm.org.apache.hadoop.fs.FileSystem
    try:
        file_systems.getFileSystemClass(scheme, spark._jsc.hadoopConfiguration())
    except Py4JJavaError:
        LOGGER.warning("no views of system tables: this Spark has no file system for %s://", scheme)
        return False
    return True
