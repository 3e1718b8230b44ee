"""A real Hive metastore as a process: the server that PySpark's jars have, over an embedded Derby."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from spark_conf.java import java_command

READY_TIMEOUT_S = 120
JARS = Path(pyspark.__file__).parent / "jars"
SERVER = "org.apache.hadoop.hive.metastore.HiveMetaStore"
OPENED = ("lang", "util", "net", "util.concurrent")


@contextlib.contextmanager
def running_metastore(folder: Path) -> Iterator[str]:
    """The address of a new metastore, whose files are below `folder`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
    }
    command = [java_command(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    # Its asynchronous log wants a library that Spark does not have.
    command += ["-Dhive.async.log.enabled=false", f"-Dderby.stream.error.file={folder}/derby.log"]
    command += [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
    command += ["-cp", f"{JARS}/*", SERVER, "-p", str(port)]
    for name, text in settings.items():
        command += ["--hiveconf", f"{name}={text}"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metastore.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait(process, port)
            yield f"thrift://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the metastore has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the metastore does not listen")
