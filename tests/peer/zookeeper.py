"""ZooKeeper from the jars that came with an old Kafka: one node as a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.peer.apache_kafka import (
    LOG4J_1,
    TOOL_OPTIONS,
    free_ports,
    java,
    wait_for_listener,
)

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"


@contextlib.contextmanager
def running_zookeeper(jar_folder: Path, folder: Path) -> Iterator[str]:
    """Where it listens."""
    folder.mkdir(parents=True)
    log4j, log_file = folder / "log4j.properties", folder / "zookeeper.log"
    log4j.write_text(LOG4J_1)
    (port,) = free_ports(1)
    options = (
        *TOOL_OPTIONS,
        f"-Dlog4j.configuration={log4j.as_uri()}",
        "-Dzookeeper.admin.enableServer=false",
        "-Dzookeeper.jmx.log4j.disable=true",
    )
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            java(jar_folder, options, MAIN, str(port), str(folder / "data")),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_for_listener("ZooKeeper", f"127.0.0.1:{port}", process, log_file)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
