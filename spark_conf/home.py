"""Shell: Spark's folder as the JVM of a session shall see it: without the archive of its Python modules.

Spark puts `python/lib/pyspark.zip` in front of the path of each Python process that it starts. What Python imports from
an archive it compiles each time: 0.8 s of CPU a process, of 1.1 s in all. Without the archive the same modules
come from the installed package, compiled. This is for sessions whose tasks run on this machine, by this interpreter;
executors elsewhere have a Spark of their own. The folder holds links, and lies beside the jars.
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
# What scripts and JVM look for there.
PARTS = ("bin", "conf", "jars", "sbin")


def quick_home() -> Path:
    """The folder, made when it is not there yet; one for each place where PySpark is installed."""
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
    """While a JVM is launched: Spark is where `quick_home` says, if tasks run here and by this interpreter."""
    with contextlib.ExitStack() as after:
        is_ours = os.environ.get("PYSPARK_PYTHON") == sys.executable and not any(
            each in settings for each in ("spark.pyspark.python", "spark.pyspark.driver.python")
        )
        if master.startswith("local") and HOME not in os.environ and is_ours:
            # Where nothing can be written Spark is slower, and no more.
            with contextlib.suppress(OSError):
                os.environ[HOME] = str(quick_home())
                after.callback(os.environ.pop, HOME)
        yield
