"""A schema registry as a process: Apicurio, which answers by Confluent's API."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from spark_conf import jars
from spark_conf.java import java_command
from tests.peer.apache_kafka import free_ports
from tests.processes import wait_until

START_TIMEOUT_S = 120


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Its address while it runs; its schemas are in its memory."""
    (packed,) = jars.fetch("apicurio").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (runner,) = folder.glob("*-runner.jar")
    (port,) = free_ports(1)
    settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [java_command(), *jars.QUICK_JAVA, "-jar", str(runner)],
            env={**os.environ, **settings},
            cwd=folder,
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        with contextlib.suppress(URLError, OSError), urlopen(f"{url}/subjects"):
            return True
        return False

    try:
        wait_until("the registry to answer", answers, timeout_s=START_TIMEOUT_S)
        yield url
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
