"""Shell: a SPARK_HOME without `pyspark.zip`, so that Spark's Python processes start faster.

Spark puts `python/lib/pyspark.zip` first in the path of each Python process, and Python compiles modules of an archive
on each import: 0.8 s of CPU per process, of 1.1 s in all. Without the archive it imports the installed package, which
is compiled. Only for sessions whose tasks run on this machine with this interpreter. The folder has links, and is next
to the jars.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_conf import jars

HOME = "SPARK_HOME"
# The folders that Spark's scripts and the JVM need.
PARTS = ("bin", "conf", "jars", "sbin")


def quick_home() -> Path:
    """The SPARK_HOME for the installed PySpark; created if it does not exist."""
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    place = hashlib.sha256(str(package).encode()).hexdigest()[:8]
    folder = jars.cache_folder().parent / f"spark-{pyspark.__version__}-{place}"
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (package / part).exists():
            # Another process may make it at the same time.
            with contextlib.suppress(FileExistsError):
                (folder / part).symlink_to(package / part)
    return folder


@contextlib.contextmanager
def launching(master: str, settings: Mapping[str, str]) -> Iterator[None]:
    """Set SPARK_HOME to `quick_home` while a JVM starts, if tasks run here and with this interpreter."""
    with contextlib.ExitStack() as after:
        is_ours = os.environ.get("PYSPARK_PYTHON") == sys.executable and not any(
            each in settings for each in ("spark.pyspark.python", "spark.pyspark.driver.python")
        )
        if master.startswith("local") and HOME not in os.environ and is_ours:
            # If the folder cannot be written, Spark is only slower.
            with contextlib.suppress(OSError):
                os.environ[HOME] = str(quick_home())
                after.callback(os.environ.pop, HOME)
        yield
